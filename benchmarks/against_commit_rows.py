"""What against_commit.py times: each row is a job of against_commit_worker.py with its options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

STRETCH = 4  # blocks after which work inside a process gets fresh processes, as each has a memory layout of its own
BATCH_LINES, ALONE_LINES = 400, 40  # of the file, evenly taken, for decoding inside a process
BATCHES = 4  # the worker trains on them in turn
SIZES = {"d128": (128, 4, 4), "d256": (256, 3, 4), "d512": (512, 6, 8)}  # d_model, layers of each stack, heads


class Row(NamedTuple):
    """What is timed."""

    name: str
    job: str  # of the worker
    options: dict[str, Any]
    warm_ups: int = 2  # with inputs 0, 1, …
    stretch: float = STRETCH  # blocks by one pair of workers


def all_rows(runs: Sequence[Path], file: Path | None) -> list[Row]:
    found = [process_row("help", ["--help"])]
    for name, (d_model, layers, heads) in SIZES.items():
        found.append(
            Row(f"step-{name}", "training_step", {"d_model": d_model, "layers": layers, "heads": heads}, BATCHES)
        )
    found.append(Row("train-words", "trainer", {"pairs": 20_000}, 1, math.inf))
    if file is not None:
        lines = [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
        for run in runs:
            found += run_rows(run, file, lines)
    return found


def run_rows(run: Path, file: Path, lines: list[str]) -> list[Row]:
    """Those of a trained run."""
    name = run.name
    usual = sorted(lines, key=len)[len(lines) // 2]
    found = [process_row(f"line-{name}", ["translate", str(run)], usual + "\n")]
    for way, number in (("batch", BATCH_LINES), ("alone", ALONE_LINES)):
        for precision in ("float32", "int8"):
            for search, beam in (("greedy", 1), ("beam4", 4)):
                settings = {"beam_size": beam, "precision": precision, "alone": way == "alone"}
                options = {"run": str(run), "lines": evenly(lines, number), **settings}
                found.append(Row(f"{search}-{precision}-{way}-{name}", "decoding", options))
    for workers in ("1", "2"):
        arguments = ["translate", str(run), str(file), "--beam_size", "1", "--workers", workers]
        found.append(process_row(f"file-workers{workers}-{name}", arguments))
    return found


def process_row(name: str, arguments: list[str], text: str = "") -> Row:
    """A whole process for each timing: it needs no fresh worker, and one run fills the caches on disk."""
    return Row(name, "command", {"arguments": arguments, "text": text}, 1, math.inf)


def evenly(lines: list[str], number: int) -> list[str]:
    number = min(number, len(lines))
    return [lines[i * len(lines) // number] for i in range(number)]
