"""The model that is measured: a run, or a recipe, which becomes an untrained run in a temporary directory.

If there is no text, random words take its place: from the run's own vocabulary, or from a made-up one of the recipe's
size. So every section gets a directory with a model, tokenizers, and prepared text.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from sixfold.api.load import open_run
from sixfold.bench.race import SEED
from sixfold.config.files import read_config, recipes
from sixfold.config.schema import Config, Files, Vocabularies
from sixfold.core.ids import CONTROLS
from sixfold.foreign.agreement import first_usable
from sixfold.models.build import build
from sixfold.models.model import Model
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.scoring.held_out import own_references
from sixfold.tasks.task import settled, task_of
from sixfold.text.corpus import Prepared, data_files, open_prepared, prepare
from sixfold.text.tokenizer import Tokenizer, Tokenizers
from sixfold.text.vocabulary import train_tokenizer
from sixfold.training.planning import complete
from sixfold.training.processes import Processes

_STEPS = 12  # optimiser steps for which random text is made
_LINE = (8, 40)  # fewest and most words of a random line
_SMALL = 64 << 20  # bytes of text up to which preparing it is quick
_NO_STEPS = 100_000  # length of the schedule; its end is never reached


class Skipped(Exception):  # noqa: N818  (that something can't be measured is not an error)
    """A section can't be measured; the message is the reason."""


@dataclass(frozen=True)
class BenchSubject:
    """A run, trained or not."""

    name: str
    run: Run
    model: Model
    tokenizers: Tokenizers
    config: Config
    prepared: Prepared
    trained: bool
    text: str  # a description of `prepared`
    imports: tuple[str, ...] = ()

    @property
    def random(self) -> bool:
        return self.text.startswith("random")

    def json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "weights": "trained" if self.trained else "random",
            "text": self.text,
            "kind": self.model.kind,
            "sizes": asdict(self.model.sizes),
            "modifications": [str(each) for each in self.model.assembly.modifications],
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
        }

    def held_out(self, number: int, file: str | None = None, lines: Sequence[str] = ()) -> tuple[list[str], str]:
        """At most `number` sources of a file, or of text not trained on, taken evenly; and a description of them."""
        if file is not None:
            texts, origin = list(lines), file
        elif self.random:
            chance = random.Random(SEED)
            texts, origin = [_line(self.tokenizers.source, chance) for _ in range(number)], "random words"
        else:
            texts, origin = self._own()
        usable = first_usable(texts, self.model, self.tokenizers, len(texts))
        if not usable and file is not None:
            raise ValueError(f"no line of {file} can be decoded: all are empty, or too long for this model")
        if not usable:
            raise Skipped(f"{origin} has no text to decode: give --file, with a sentence on each line")
        chosen = thinned(usable, number)
        return chosen, f"{len(chosen):,} of {len(usable):,} lines of {origin}"

    def _own(self) -> tuple[list[str], str]:
        """The run's test text; if it has none, its validation text."""
        for part in ("test", "valid"):
            try:
                found = own_references(self.run, self.config, task_of(self.config), self.tokenizers, part)
            except (ValueError, OSError):
                continue
            return [each.source for each in found], f"data.{part}"
        return [], "the run"


def thinned(items: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the items, taken evenly."""
    return list(items) if len(items) <= most else [items[i * len(items) // most] for i in range(most)]


@contextmanager
def opened(
    what: str, settings: Mapping[str, Any], modify: Sequence[str] = (), imports: Sequence[str] = ()
) -> Iterator[BenchSubject]:
    """A run by its directory, or a recipe by its name or file. Nothing is written into the run."""
    with tempfile.TemporaryDirectory(prefix="sixfold-bench-") as folder:
        if Path(what).is_dir() and (what not in recipes() or Run(what).exists()):  # help-en-de is also a corpus
            yield _open_run(what, settings, modify, Path(folder), tuple(imports))
        else:
            config = settled(read_config(what, settings)).with_modifications(modify)
            yield _make_run(what, config, Path(folder), tuple(imports))


def _open_run(
    what: str, settings: Mapping[str, Any], modify: Sequence[str], folder: Path, imports: tuple[str, ...]
) -> BenchSubject:
    fixed = [f"--{key}" for key in settings if key.partition(".")[0] in ("data", "model")]
    if fixed or modify:
        raise ValueError(f"{(fixed or ['--modify'])[0]} is for recipes, but {what} is a run, whose model is fixed")
    model, tokenizers, config, _ = open_run(what, "cpu", settings)
    try:
        prepared, text = open_prepared(Run(what).data, tokenizers), "the run's own"
    except ValueError:
        config = _with_random_text(config, tokenizers, folder)
        prepared, text = (
            _prepare(config, folder / "data", tokenizers),
            "random words, because the run's own text is missing",
        )
    return BenchSubject(what, Run(what), model, tokenizers, _endless(config), prepared, True, text, imports)


def _make_run(what: str, config: Config, folder: Path, imports: tuple[str, ...]) -> BenchSubject:
    run, missing = Run(folder), _no_text(config)
    if missing is None:
        prepared, text = _prepare(config, run.data), "the recipe's own"
        config = complete(config, prepared, Processes()).config
    else:
        tokenizers = _names(config)
        config = _with_random_text(config, tokenizers, folder)
        prepared, text = _prepare(config, run.data, tokenizers), f"random words, because {missing}"
    tokenizers, config = prepared.tokenizers, _endless(config)
    sizes = config.sizes_with(tokenizers)
    model = build(sizes, config.model.modifications, config.model.kind, seed=config.training.seed)
    run.begin(config, {})
    tokenizers.save(run.directory)
    model_files.save(model, run.directory)
    return BenchSubject(what, run, model.eval(), tokenizers, config, prepared, False, text, imports)


def _prepare(config: Config, folder: Path, tokenizers: Tokenizers | None = None) -> Prepared:
    return prepare(config.data, task_of(config).form, folder, tokenizers)


def _endless(config: Config) -> Config:
    return config if config.training.steps is not None else config.with_steps(_NO_STEPS)


def _no_text(config: Config) -> str | None:
    """The reason why a recipe's own text is not used; None if it is."""
    if config.data.train is None:
        return "the recipe has no text"
    try:
        files = data_files(config.data, task_of(config).form)
        size = sum(file.stat().st_size for file in files)
    except (ValueError, OSError):
        return "the recipe's text does not exist"
    return f"the recipe's text is large ({size / 2**20:,.0f} MiB)" if size > _SMALL else None


def _names(config: Config) -> Tokenizers:
    """Tokenizers with made-up words, and the vocabulary size of the recipe."""
    config.sizes()  # raises a ValueError if the recipe has no vocabulary size
    words = config.data.vocabulary

    def tokenizer(size: int) -> Tokenizer:
        return train_tokenizer("symbols", [" ".join(f"w{i}" for i in range(size - len(CONTROLS)))], None)

    if isinstance(words, Vocabularies):
        return Tokenizers(tokenizer(words.source), tokenizer(words.target))
    assert words is not None
    joint = tokenizer(words)
    return Tokenizers(joint, joint)


def _with_random_text(config: Config, tokenizers: Tokenizers, folder: Path) -> Config:
    """The configuration with random words, which are written to `folder`, as training text."""
    chance, tokens = random.Random(SEED), config.training.batch_tokens * _STEPS
    number = max(64, tokens // (sum(_LINE) // 2))
    paths = {}
    for side, tokenizer in zip(("source", "target"), tokenizers, strict=True):
        paths[side] = folder / f"random.{side}"
        lines = (_line(tokenizer, chance, config.data.max_length) for _ in range(number))
        paths[side].write_text("".join(chain.from_iterable((line, "\n") for line in lines)), encoding="utf-8")
    pairs = task_of(config).form.has_pairs
    train: Files | str = Files(source=str(paths["source"]), target=str(paths["target"]))
    changes = {"train": train if pairs else str(paths["target"]), "valid": None, "test": None, "held_out": 0}
    changes |= {"source": None, "target": None}
    return config.model_copy(update={"data": config.data.model_copy(update=changes)})


def _line(tokenizer: Tokenizer, chance: random.Random, most: int = _LINE[1]) -> str:
    number = min(chance.randint(*_LINE), most)
    ids = [chance.randrange(len(CONTROLS), len(tokenizer)) for _ in range(number)]
    return " ".join(tokenizer.decode(ids).split()) or "a"
