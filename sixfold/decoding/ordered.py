"""Lines in, outputs out, in order, as the lines come: memory depends on windows and budgets, not on their number.

    lines ──▶ window: up to so many lines ──▶ jobs, by length ──▶ search ──▶ back in order ──▶ outputs

A search takes jobs as it has room for them, so one window follows upon another without the batch running empty; lengths
fall in one window, rise in the next, and so on, so that those that are on their way together are alike. Where somebody
waits for the first outputs, they rise in the first. An error ends the stream, after all lines before it have been
answered; it names its line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch

from sixfold.decoding.engine import Hypothesis, Job, Unanswerable
from sixfold.decoding.records import Line
from sixfold.text.tokenizer import checked

WINDOW = 1024  # lines that are sorted together
FIRST = 64  # of the first; each is twice as large as the one before, so that something is soon there
_CHARACTERS = 1 << 22  # or fewer, if they are as long as this
_AHEAD = 4  # windows that may be done while an earlier line is not

Numbered = tuple[int, Line]
SearchResult = tuple[Job, list[Hypothesis]]
Output = TypeVar("Output")


class Tag(NamedTuple):
    """Whose job it is."""

    number: int
    line: Line
    note: str = ""


class LineTask(Protocol[Output]):
    """What is done with lines."""

    @property
    def empty(self) -> Output:
        """The output of a line without a job."""

    def encode(self, lines: Sequence[Line]) -> list[list[int]]: ...

    def job(self, number: int, line: Line, ids: Sequence[int]) -> Job | None:
        """What a search has to do for a line, with a Tag; None: nothing, its output is `empty`."""

    def search(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Any]]: ...

    def finish(self, found: Sequence[tuple[Job, Any]]) -> list[Output]: ...


class OrderedStream(Generic[Output]):
    """One pass over lines. A None among them means that no more is there at the moment: all so far is answered."""

    def __init__(
        self,
        task: LineTask[Output],
        lines: Iterable[str | Line | None],
        window: int = WINDOW,
        start: int = 1,
        first: int = FIRST,
    ):
        if window < 1:
            raise ValueError(f"a window has at least one line, got {window}")
        if first < 1:
            raise ValueError(f"the first window has at least one line, got {first}")
        self.task, self.window = task, window
        self._size = min(first, window)  # of the next window
        self._hasty = first < window  # whether somebody waits for the first outputs after a pause
        self._falling = not self._hasty  # whether the next window begins with its longest
        self._lines, self._read = iter(lines), start - 1
        self._order = _InOrder(start)
        self._ended = False
        self._error: Exception | None = None

    @torch.inference_mode()
    def __iter__(self) -> Iterator[Output]:
        while not self._ended:
            yield from self._answer(self._jobs())
        if self._error is not None:
            raise self._error

    def _answer(self, jobs: Iterable[Job]) -> Iterator[Output]:
        """Until there is no job left. Who can't be answered is named, after all before it are answered."""
        left: Iterable[Job] | None = jobs
        while left is not None:
            try:
                for found in self.task.search(left):
                    self._order.put(*found)
                    yield from self._ready()
                left = None
            except Unanswerable as error:
                number = error.job.tag.number
                self._stop(number, ValueError(f"line {number}: {error}"))
                left = self._order.unanswered()
        yield from self._ready()

    def _ready(self) -> Iterator[Output]:
        """The outputs that are next in order; finished only now, so that alignments are read for many at once."""
        ready = self._order.take()
        made = iter(self.task.finish([found for found in ready if found is not None]))
        for found in ready:
            yield self.task.empty if found is None else next(made)

    def _jobs(self) -> Iterator[Job]:
        """Window after window, until the lines end or pause."""
        while not self._ended and len(self._order) <= _AHEAD * self.window:
            lines, paused = self._next_window()
            self._size = min(2 * self._size, self.window)
            jobs = self._make(lines)
            yield from sorted(jobs, key=lambda job: job.tokens, reverse=self._falling)
            self._falling = not (self._hasty if paused else self._falling)
            if paused or not jobs:
                return

    def _next_window(self) -> tuple[list[Numbered], bool]:
        """→ the lines, and whether a pause came after them"""
        lines, characters = list[Numbered](), 0
        while len(lines) < self._size and characters < _CHARACTERS and not self._ended:
            try:
                line = next(self._lines)
            except StopIteration:
                self._ended = True
                break
            except (ValueError, OSError) as error:  # lines that come from a file name it themselves
                self._stop(self._read + 1, error)
                break
            if line is None:
                return lines, True
            self._read += 1
            whole = self._checked(self._read, line if isinstance(line, Line) else Line(line))
            if whole is not None:
                lines.append((self._read, whole))
                characters += len(whole.text)
        return lines, False

    def _checked(self, number: int, line: Line) -> Line | None:
        """The line, if it is a text; if it is none, the stream ends before it."""
        try:
            if not isinstance(line.text, str):
                raise ValueError(f"expected a text, got {type(line.text).__name__}")
            checked(line.text)
        except ValueError as error:
            self._stop(number, ValueError(f"line {number}: {error}"))
            return None
        return line

    def _make(self, lines: Sequence[Numbered]) -> list[Job]:
        """The jobs of lines, up to the first that is a mistake; what needs no search is done."""
        jobs: list[Job] = []
        for (number, line), ids in zip(lines, self.task.encode([line for _, line in lines]), strict=True):
            try:
                job = self.task.job(number, line, ids)
            except ValueError as error:
                self._stop(number, ValueError(f"line {number}: {error}"))
                break
            self._order.expect(number, job)
            if job is not None:
                jobs.append(job)
        return jobs

    def _stop(self, number: int, error: Exception) -> None:
        """The stream ends before this line, if it did not end before anyway."""
        self._ended = True
        if number < self._order.end:
            self._order.end, self._error = number, error


class _InOrder:
    """Puts what was found back in the order of the lines."""

    def __init__(self, start: int):
        self.end: float = math.inf  # lines from here on are never given
        self._next = start
        self._expected: dict[int, Job | None] = {}
        self._found: dict[int, tuple[Job, Any]] = {}

    def __len__(self) -> int:
        """Lines that wait for others, or to be answered."""
        return len(self._expected)

    def expect(self, number: int, job: Job | None) -> None:
        self._expected[number] = job

    def put(self, job: Job, found: Any) -> None:
        self._found[job.tag.number] = job, found

    def take(self) -> list[tuple[Job, Any] | None]:
        """What is next, as far as it is there; None for a line without a job."""
        ready: list[tuple[Job, Any] | None] = []
        while self._next < self.end and self._next in self._expected:
            if self._expected[self._next] is not None and self._next not in self._found:
                break
            del self._expected[self._next]
            ready.append(self._found.pop(self._next, None))
            self._next += 1
        return ready

    def unanswered(self) -> list[Job]:
        """The jobs before the end that nothing was found for yet."""
        jobs = ((number, job) for number, job in self._expected.items() if number < self.end)
        return [job for number, job in jobs if job is not None and number not in self._found]
