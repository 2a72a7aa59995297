"""Is a commit slower than another? Two checkouts of sixfold do the same work in turn, row by row.

    git worktree add /somewhere/old COMMIT
    python benchmarks/against_commit.py --old /somewhere/old --run RUN --lines FILE --json results.json

README.md says what is measured and how; against_commit_worker.py does the work in each checkout.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from against_commit_rows import STRETCH, Row, all_rows

from sixfold.bench.machine import machine, warning
from sixfold.bench.race import RESAMPLES, SEED, Ratio, ratio
from sixfold.disk.atomic import write_text

GOAL = 0.97  # what the speed of the new commit must reach, as a part of the old one's
OLD, NEW = "old", "new"
BLOCK = (OLD, NEW, NEW, OLD)  # drift hits both sides alike
FEWEST = 8  # blocks before an interval is believed
LEAST_SECONDS = 0.5  # of a timing: shorter work is repeated
BUSY = 0.15  # cores that other processes may use before the figures are in doubt
WORKER = Path(__file__).with_name("against_commit_worker.py")


class Timings(NamedTuple):
    """Seconds of each side, one number for a block."""

    old: list[float]
    new: list[float]

    def interval(self) -> Ratio | None:
        """Old time / new time with its interval, or None for too few blocks."""
        return ratio(self.old, self.new) if len(self.old) >= FEWEST else None


def main() -> int:
    options = parse()
    report: dict[str, Any] = {
        "machine": where(options),
        "checkouts": {side: described(getattr(options, side)) for side in (OLD, NEW)},
        "method": method(options),
        "rows": [],
    }
    say(f"old: {report['checkouts'][OLD]}\nnew: {report['checkouts'][NEW]}")
    if doubt := warning(os.getloadavg()[0]):
        say(doubt)
    table = Table(max(len(row.name) for row in options.rows))
    for row in options.rows:
        report["rows"].append(measured(row, options))
        table.show(report["rows"][-1])
        if options.json:  # after each row: a long run that is stopped leaves the rows it has
            write_text(options.json, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return int(any(each["holds"] == "no" for each in report["rows"]))


def chosen_rows(options: argparse.Namespace, fail: Callable[[str], Any]) -> list[Row]:
    rows = all_rows(options.run, options.lines)
    patterns = [part.strip() for part in options.rows.split(",") if part.strip()]
    if not patterns:
        fail("--rows: give at least one name or pattern")
    for pattern in patterns:
        if not any(fnmatchcase(row.name, pattern) for row in rows):
            hint = "" if options.run else "; rows of decoding need --run and --lines"
            fail(f"--rows: no row is called {pattern!r}; there are {', '.join(row.name for row in rows)}{hint}")
    return [row for row in rows if any(fnmatchcase(row.name, pattern) for pattern in patterns)]


# How a row is measured ----------------------------------------------------------------------------------


def measured(row: Row, options: argparse.Namespace) -> dict[str, Any]:
    """Blocks of timings until the interval is narrow enough, or the time is over."""
    say(f"{row.name}: warming up")
    timings, outputs, began, busy = Timings([], []), {}, time.perf_counter(), Busy()
    repeat = 0

    def over() -> bool:
        blocks, seconds = len(timings.old), time.perf_counter() - began
        late = blocks > 0 and seconds * (blocks + 1) / blocks > 60 * options.minutes_per_row
        return late or narrow(timings.interval(), options.precision)

    while not over():
        with started(row, options) as workers:
            warm = {side: warmed_up(workers[side], row.warm_ups) for side in (OLD, NEW)}
            outputs = {side: warm[side]["output"] for side in warm}
            repeat = repeat or math.ceil(LEAST_SECONDS / max(each["seconds"] for each in warm.values()))
            stretch = 0
            while stretch < row.stretch and not (stretch and over()):
                block(workers, timings, repeat)
                stretch += 1
                tell(row, timings, time.perf_counter() - began)
    return result(row, timings, repeat, outputs[OLD] == outputs[NEW], busy.others(), options)


def block(workers: dict[str, Worker], timings: Timings, repeat: int) -> None:
    """Old, new, new, old, all with the same input."""
    seconds: dict[str, list[float]] = {OLD: [], NEW: []}
    for side in BLOCK:
        done = workers[side].ask({"do": "time", "first": len(timings.old) * repeat, "repeat": repeat})
        seconds[side].append(done["seconds"])
    timings.old.append(sum(seconds[OLD]) / 2)
    timings.new.append(sum(seconds[NEW]) / 2)


def warmed_up(worker: Worker, inputs: int) -> dict[str, Any]:
    """The answer to the last of some timings that don't count, each with another input."""
    return [worker.ask({"do": "time", "first": number, "repeat": 1}) for number in range(inputs)][-1]


def narrow(found: Ratio | None, precision: float) -> bool:
    return found is not None and max(found.high - found.median, found.median - found.low) <= precision * found.median


def result(
    row: Row, timings: Timings, repeat: int, same: bool, others: float | None, options: argparse.Namespace
) -> dict[str, Any]:
    found = timings.interval()
    if others is not None and others > BUSY:
        say(f"{row.name}: other processes used {others:.2f} cores meanwhile; measure it again on an idle machine")
    if not same:
        say(f"{row.name}: the two sides gave different outputs, so that their work may differ, too")
    return {
        "row": row.name,
        "blocks": len(timings.old),
        "repeat": repeat,
        "ratio": median(o / n for o, n in zip(*timings, strict=True)),
        "interval": None if found is None else [found.low, found.high],
        "narrow": narrow(found, options.precision),
        "holds": "open" if found is None else verdict(found),
        "same_output": same,
        "cores_of_others": others,
        "old_seconds": timings.old,
        "new_seconds": timings.new,
    }


def verdict(found: Ratio) -> str:
    return "yes" if found.low >= GOAL else "no" if found.high < GOAL else "open"


class Busy:
    """How many cores processes other than ours use, from now on. Our workers count once they have ended."""

    def __init__(self) -> None:
        self._began = self._now()

    def others(self) -> float | None:
        """None where the system does not say."""
        if self._began is None or (now := self._now()) is None:
            return None
        clock, all_busy, ours = (b - a for a, b in zip(self._began, now, strict=True))
        return max(0.0, (all_busy - ours) / clock)

    def _now(self) -> tuple[float, float, float] | None:
        stat, own = Path("/proc/stat"), os.times()
        if not stat.exists():
            return None
        user, nice, system, _, _, irq, softirq, steal = map(int, stat.read_text().split("\n")[0].split()[1:9])
        ticks = user + nice + system + irq + softirq + steal
        ours = own.user + own.system + own.children_user + own.children_system
        return own.elapsed, ticks / os.sysconf("SC_CLK_TCK"), ours


# The workers --------------------------------------------------------------------------------------------


class WorkerError(RuntimeError):
    """One side can't do the work."""


class Worker:
    """A process that works in one checkout, in a session of its own, so that its children end with it."""

    def __init__(self, side: str, row: Row, options: argparse.Namespace, folder: Path):
        self.name, self.checkout = f"{row.name}, {side}", getattr(options, side)
        paths = [str(self.checkout), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        if options.threads:
            environment["OMP_NUM_THREADS"] = str(options.threads)
        piped: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)], cwd=folder, env=environment, start_new_session=True, **piped
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(f"{self.name}: the worker ended with code {self._process.wait()}; see its messages above")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.name}, in {self.checkout}: {answer['error']}")
        return answer

    def kill(self) -> None:
        """End it at once, with all its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Say that nothing more is asked, and wait for its end."""
        self._process.communicate()


@contextmanager
def started(row: Row, options: argparse.Namespace) -> Iterator[dict[str, Worker]]:
    """A worker for each side that has prepared the work, in an empty folder: no package lies there by chance."""
    workers: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory(prefix="against-commit-") as folder:
        try:
            for side in (OLD, NEW):
                (Path(folder) / side).mkdir()
                workers[side] = Worker(side, row, options, Path(folder) / side)
                prepared = {"checkout": str(getattr(options, side)), "job": row.job, "options": row.options}
                workers[side].ask({"do": "prepare", "options": prepared})
            yield workers
        except BaseException:
            for worker in workers.values():
                worker.kill()
            raise
        finally:
            for worker in workers.values():
                worker.close()


# How it is told -----------------------------------------------------------------------------------------


class Table:
    """Markdown on standard output, a line as soon as its row is measured."""

    def __init__(self, width: int):
        head = [
            "row".ljust(width),
            "old, ms  ",
            "new, ms  ",
            "old / new time      ",
            "blocks",
            f"≥ {GOAL}",
            "same",
            "others",
        ]
        self._widths = [max(7, len(each)) for each in head]
        self._line(head)
        self._line(["-" * width for width in self._widths])

    def show(self, found: dict[str, Any]) -> None:
        times = (f"{1000 * median(found[f'{side}_seconds']):,.1f}" for side in (OLD, NEW))
        others = found["cores_of_others"]
        self._line(
            [
                found["row"],
                *times,
                shown(found["ratio"], found["interval"]),
                str(found["blocks"]),
                found["holds"],
                "yes" if found["same_output"] else "no",
                "?" if others is None else f"{others:.2f}",
            ]
        )

    def _line(self, cells: Sequence[str]) -> None:
        padded = (cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True))
        print("| " + " | ".join(padded) + " |", flush=True)


def shown(middle: float, interval: Sequence[float] | None) -> str:
    return f"{middle:.3f} (few blocks)" if interval is None else str(Ratio(middle, *interval))


def tell(row: Row, timings: Timings, seconds: float) -> None:
    blocks = len(timings.old)
    if blocks & (blocks - 1) == 0 or blocks % STRETCH == 0:  # often in the beginning
        found = timings.interval()
        say(f"{row.name}: block {blocks} after {seconds:.0f} s" + (f", {found}" if found else ""))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def where(options: argparse.Namespace) -> dict[str, Any]:
    found = machine(f"python benchmarks/{Path(__file__).name}")
    return {**found, "threads": options.threads or found["threads"]}


def described(checkout: Path) -> str:
    """A checkout and its commit, where git knows it."""
    asked = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "no commit known"
    return f"{checkout} ({commit})"


def method(options: argparse.Namespace) -> dict[str, Any]:
    said = {"goal": GOAL, "fewest_blocks": FEWEST, "resamples": RESAMPLES, "seed": SEED, "order": BLOCK}
    return {**said, **{key: getattr(options, key) for key in ("precision", "minutes_per_row", "threads")}}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--old", type=Path, required=True, metavar="CHECKOUT", help="a checkout of the old commit")
    parser.add_argument("--new", type=Path, default=here, metavar="CHECKOUT", help="default: the one of this file")
    parser.add_argument("--run", type=Path, action="append", default=[], help="a trained run; may be given often")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="source lines for the rows of decoding")
    parser.add_argument("--rows", default="*", help="names or patterns between commas, such as 'step-*,help'")
    parser.add_argument(
        "--minutes-per-row", type=float, default=15.0, metavar="N", help="at most; default: %(default)s"
    )
    parser.add_argument("--precision", type=float, default=0.03, help="half of the interval; default: %(default)s")
    parser.add_argument("--threads", type=int, help="OMP_NUM_THREADS of both sides; default: the environment's")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for everything, written after each row")
    options = parser.parse_args()
    check(options, parser.error)
    options.old, options.new, options.run = (
        options.old.resolve(),
        options.new.resolve(),
        [r.resolve() for r in options.run],
    )
    options.lines = options.lines and options.lines.resolve()
    options.rows = chosen_rows(options, parser.error)
    return options


def check(options: argparse.Namespace, fail: Callable[[str], Any]) -> None:
    for side in (OLD, NEW):
        if not (getattr(options, side) / "sixfold" / "__init__.py").is_file():
            fail(f"--{side}: {getattr(options, side)} is not a checkout of sixfold")
    for run in options.run:
        if not (run / "model.json").is_file():
            fail(f"--run: {run} has no model")
    if len({run.resolve().name for run in options.run}) < len(options.run):
        fail("--run: rows are called by the directories' names, which must differ")
    if bool(options.run) != bool(options.lines):
        fail("--run and --lines go together: the run is what decodes, the lines are what it reads")
    if options.lines and not (options.lines.is_file() and options.lines.read_text(encoding="utf-8").strip()):
        fail(f"--lines: {options.lines} is not a file with text")
    if options.json and not options.json.resolve().parent.is_dir():
        fail(f"--json: there is no directory {options.json.resolve().parent}")
    if not (options.minutes_per_row > 0 and options.precision > 0):
        fail("--minutes-per-row and --precision must be more than 0")
    if options.threads is not None and options.threads < 1:
        fail(f"--threads must be at least 1, got {options.threads}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that workers end, too
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped; the rows that were done are in the table, and in the file of --json")
        sys.exit(128 + signal.SIGINT)
    except WorkerError as error:
        say(f"error: {error}")
        sys.exit(2)
