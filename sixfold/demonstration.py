"""What `python -m sixfold.demo` does: it trains on the embedded text, then shows what the model has learned."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import typer
from rich.text import Text

from sixfold.api.load import load
from sixfold.config.files import read_config
from sixfold.decoding.attention_picture import drawn
from sixfold.decoding.translator import Translator
from sixfold.runs.run import Run
from sixfold.scoring.error_rates import without_stress
from sixfold.scoring.metrics import METRICS
from sixfold.terminal import console, table
from sixfold.text.preparation import Reference, pair_references
from sixfold.training.observers.display import Display
from sixfold.training.observers.observer import Observer, Validated
from sixfold.training.runner import train
from sixfold.training.what_next import to_resume

T = TypeVar("T")
_MARKS = {True: "✓", False: "→"}
RECIPE, METRIC = "pronounce", "pronunciation"
SCORED, SHOWN, FOLLOWED = 500, 10, 3  # words: scored at the end, shown at the end, shown while it learns
_WIDTH = 26  # of an answer that is shown while it learns
BEAM = 4  # hypotheses, at the end
# Often enough to see it learn. Greedy search makes a validation as short as possible.
SETTINGS = {"training.validate_every": "15 %", "training.checkpoint_every": "50 %", "decoding.beam_size": "1"}


def demo(minutes: float, out: Path, settings: Mapping[str, str] | None = None) -> int:
    """Train and show; returns the exit code."""
    typer.echo(f"A Transformer learns to pronounce English words, for {minutes:g} minutes.\n", err=True)
    config = read_config(RECIPE, {**SETTINGS, "training.minutes": str(minutes), **(settings or {})})
    display = Display()
    outcome = train(config, out, overwrite=True, display=display, observers=[Answers(display)])
    if not outcome.finished:
        typer.echo(f"to continue: {to_resume(out)}", err=True)
        return 1 if outcome.signal is None else 128 + outcome.signal
    show(out)
    return 0


class Answers(Observer):
    """Shows after each validation how the model now pronounces the same few words that it does not learn from."""

    def __init__(self, display: Display):
        self._display = display

    def validated(self, done: Validated) -> None:
        if not done.answers:
            return
        pairs = list(zip(done.references, done.answers, strict=True))
        longest = sorted(pairs, key=lambda pair: (-len(pair[0].source), pair[0].source))
        shown = spread(longest[: len(longest) // 2], FOLLOWED)
        words = (f"{word.source} {_MARKS[is_right(word, text)]} {text[:_WIDTH]:<{_WIDTH}}" for word, text in shown)
        right = 100 - done.scores.get(METRIC, 100.0)
        self._display.say(f"  {right:.0f} % of unseen words right   {'  '.join(words)}".rstrip())


def show(out: Path) -> None:
    """Score held-out words, and show some of them."""
    config, translator = Run(out).read_config(), load(out, device="cpu")
    assert isinstance(translator, Translator), f"{RECIPE} makes a model of another kind"
    words = spread(pair_references(config.data, "test"), SCORED)
    outputs = [translation.text for translation in translator.translate([word.source for word in words])]
    scores = METRICS[METRIC].score(outputs, [word.targets for word in words])
    typer.echo(
        f"\nOn {len(words)} words that it has never seen (a sample of the test set):\n"
        f"  {100 - scores[METRIC]:.1f} % of the words are pronounced as in the dictionary,\n"
        f"  {100 - scores[f'{METRIC}_stressed']:.1f} % with every stress right as well;\n"
        f"  {scores['phone_error_rate']:.1f} % of the sounds are wrong.\n"
    )
    shown = spread(list(zip(words, outputs, strict=True)), SHOWN)
    rows = table("word", "it says", "the dictionary", "")
    for word, hypothesis in shown:
        rows.add_row(*map(Text, (word.source, hypothesis, " / ".join(word.targets), verdict(hypothesis, word))))
    console().print(rows)
    _look(translator, *max(shown, key=lambda pair: (is_right(*pair), len(pair[0].source))))
    _say_what_next(out)


def spread(items: Sequence[T], count: int) -> list[T]:
    """`count` of the items, at even distances from the first to the last."""
    count = min(count, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def is_right(word: Reference, hypothesis: str) -> bool:
    return without_stress(hypothesis) in map(without_stress, word.targets)


def verdict(hypothesis: str, word: Reference) -> str:
    if hypothesis in word.targets:
        return "right"
    return "right except for stress" if is_right(word, hypothesis) else "wrong"


def _look(translator: Translator, word: Reference, output: str) -> None:
    """Draw where the decoder looks while it pronounces a word."""
    typer.echo(f"\nWhere it looks in {word.source!r} while it writes each sound:")
    typer.echo(drawn(translator.cross_attention(word.source, output)))


def _say_what_next(out: Path) -> None:
    run, sixfold = shlex.quote(str(out)), shlex.quote(_command())
    commands = {
        f"echo transformer | {sixfold} translate {run}": "pronounce a word of your own",
        f"{sixfold} align {run} transformer": "show where it looks, for any word",
        f"{sixfold} info {run}": "describe this run",
        f"{sixfold} plot {run}": "draw its curves",
        f"{sixfold} train --modify swiglu --training.minutes 20": "train longer, with another feed-forward layer",
        f"{sixfold} list": "list all modifications",
        f"{sixfold} train --help": "train on your own text, with other sizes",
    }
    width = max(map(len, commands))
    lines = (f"  {command:<{width}}  {why}" for command, why in commands.items())
    typer.echo("\n".join(["\nWhat to type next:", *lines, ""]))


def _command() -> str:
    """The command that the shell finds as `sixfold`; where it finds none, the one that belongs to this Python."""
    own = Path(sys.executable).with_name("sixfold")
    if shutil.which("sixfold") or not own.exists():
        return "sixfold"
    return os.path.relpath(own) if own.is_relative_to(Path.cwd()) else str(own)
