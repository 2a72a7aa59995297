"""One side of against_commit.py: works in one checkout of sixfold, asked by lines of JSON on standard input.

Only interfaces that stay the same from commit to commit are used: the command line, `build`, `Sizes`, `Batch`,
`model(batch)`, `load` and `translate`. The same file serves both sides; PYTHONPATH says which checkout is imported.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

PAD, BOS, FIRST_WORD = 0, 1, 4
VOCABULARY = 8000
SHAPES = ((160, 12), (64, 32), (36, 56), (20, 100))  # rows × longest target: about 2,000 tokens, sorted by length
SHORTEST = 0.95  # of the longest row of a batch: what sorting by length leaves
TRAINED, LOG_EVERY = 30, 6  # steps of `sixfold train`; the first LOG_EVERY warm up


class Done(NamedTuple):
    """One piece of work."""

    output: str  # what must be the same on both sides
    seconds: float | None = None  # measured by the work itself; None: take the time around it


Work = Callable[[int], Done]  # the number says which of several inputs to take


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what anybody else prints must not come between the answers
    work: Work | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "prepare":
                work = prepare(**request["options"])
                answer: dict[str, Any] = {}
            else:
                assert work is not None, "prepare comes first"
                answer = timed(work, request["first"], request["repeat"])
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def prepare(checkout: str, job: str, options: dict[str, Any]) -> Work:
    import sixfold

    if not Path(sixfold.__file__).resolve().is_relative_to(checkout):
        raise ValueError(f"sixfold was imported from {sixfold.__file__}, not from {checkout}")
    return JOBS[job](**options)


def timed(work: Work, first: int, repeat: int) -> dict[str, Any]:
    """Do it `repeat` times. → seconds for one, and a hash of the outputs"""
    gc.collect()
    begin = time.perf_counter()
    done = [work(number) for number in range(first, first + repeat)]
    seconds = time.perf_counter() - begin
    measured = [each.seconds for each in done if each.seconds is not None]
    hashed = hashlib.sha256("\n".join(each.output for each in done).encode()).hexdigest()
    return {"seconds": (sum(measured) if measured else seconds) / repeat, "output": hashed}


# Training -----------------------------------------------------------------------------------------------


def training_step(d_model: int, layers: int, heads: int) -> Work:
    """Forward, backward, clipping and AdamW on fixed batches of different lengths."""
    import torch

    import sixfold

    widths = {"d_model": d_model, "d_ff": 4 * d_model, "heads": heads}
    sizes = sixfold.Sizes(vocab=VOCABULARY, encoder_layers=layers, decoder_layers=layers, dropout=0.1, **widths)
    model = sixfold.build(sizes, seed=1).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    batches = [random_batch(rows, length) for rows, length in SHAPES]
    torch.manual_seed(1)

    def step(number: int) -> Done:
        batch = batches[number % len(batches)]
        loss = total(model(batch)) / batch.targets.ne(PAD).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return Done(f"{loss.item():.3f}")

    return step


def total(losses: Any) -> Any:
    """The sum to minimise, of a record with a field `sum`, or of several such terms by name."""
    terms = losses.values() if isinstance(losses, Mapping) else [losses]
    return sum(term.sum for term in terms)


def random_batch(rows: int, longest: int) -> Any:
    """Ids of which low ones are frequent, as words are; rows differ a little in length."""
    import torch

    import sixfold

    chance = torch.Generator().manual_seed(longest)
    source, targets = (torch.rand(2, rows, longest, generator=chance) ** 3 * (VOCABULARY - FIRST_WORD)).long()
    lengths = torch.randint(int(SHORTEST * longest), longest + 1, (2, rows, 1), generator=chance)
    lengths[:, 0] = longest
    source, targets = (
        (ids + FIRST_WORD).where(torch.arange(longest) < length, PAD)
        for ids, length in zip((source, targets), lengths, strict=True)
    )
    inputs = torch.cat([torch.full((rows, 1), BOS), targets[:, :-1]], dim=1).where(targets != PAD, PAD)
    return sixfold.Batch(source=source, inputs=inputs, targets=targets)


LETTERS = "abcdefghijklmnopqrstuvwxyz"
SETTINGS = {  # what a plan would choose: the same for both commits
    "model.d_model": 128,
    "model.d_ff": 512,
    "model.heads": 4,
    "model.layers": 4,
    "model.dropout": 0.15,
    "training.batch_tokens": 2500,
    "training.optimizer": "adamw",
    "training.learning_rate": 1.5e-3,
    "training.schedule": "cosine",
    "training.label_smoothing": 0.1,
    "training.metric": "loss",
}


def trainer(pairs: int) -> Work:
    """`sixfold train`, a few steps: the time of its own log, without preparation and validation.

    The text is words and their letters backwards. Its sides are equally long, so that a limit on either of them, or on
    both, makes the same batches.
    """
    length = {
        "steps": TRAINED,
        "log_every": LOG_EVERY,
        "validate_every": 10 * TRAINED,
        "checkpoint_every": 10 * TRAINED,
    }
    settings = {**SETTINGS, **{f"training.{key}": value for key, value in length.items()}}
    chance, text = random.Random(1), Path("words.tsv").resolve()
    words = ["".join(chance.choices(LETTERS, k=chance.randint(3, 12))) for _ in range(pairs)]
    text.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    said = ["--data.train", str(text), "--data.tokenizer", "characters"]
    said += [part for key, value in settings.items() for part in (f"--{key}", str(value))]

    def train(number: int) -> Done:
        out = Path(f"run-{number}").resolve()
        try:
            sixfold_command(["train", "--out", str(out), *said])
            return steps_of(out / "log.jsonl")
        finally:
            shutil.rmtree(out, ignore_errors=True)

    return train


def steps_of(log: Path) -> Done:
    """The time between the first and the last line about training, per token times 100,000."""
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    lines = [record for record in records if record["kind"] == "train"]
    if len(lines) < 2:
        raise ValueError(f"{log} has {len(lines)} lines about training; at least 2 are needed")
    tokens, seconds = (lines[-1][key] - lines[0][key] for key in ("tokens", "seconds"))
    return Done(f"{lines[0]['loss']:.3f}", 1e5 * seconds / tokens)


# Decoding and the command line --------------------------------------------------------------------------


def decoding(run: str, lines: list[str], alone: bool, **settings: Any) -> Work:
    """From text to text in this process, all lines in one call or each in its own."""
    import sixfold

    translator = sixfold.load(run, device="cpu")
    calls = [[line] for line in lines] if alone else [lines]

    def translate(number: int) -> Done:
        return Done("\n".join(each.text for call in calls for each in translator.translate(call, **settings)))

    return translate


def command(arguments: list[str], text: str = "") -> Work:
    """A whole process of `sixfold`, from start to end."""
    return lambda number: Done(sixfold_command(arguments, text))


def sixfold_command(arguments: list[str], text: str = "") -> str:
    called = [sys.executable, "-m", "sixfold", *arguments]
    done = subprocess.run(called, input=text, capture_output=True, encoding="utf-8")
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise RuntimeError(f"`sixfold {' '.join(arguments)}` ended with code {done.returncode}: {last}")
    return done.stdout


JOBS: dict[str, Callable[..., Work]] = {each.__name__: each for each in (training_step, trainer, decoding, command)}


if __name__ == "__main__":
    main()
