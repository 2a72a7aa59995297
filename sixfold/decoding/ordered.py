"""Lines in, outputs out, in order, as the lines come: memory depends on windows and budgets, not on their number.

    lines ──▶ window: up to so many lines ──▶ jobs, by length ──▶ engine ──▶ back in order ──▶ outputs

An engine takes jobs as it has room for them, so one window follows upon another without the batch running empty;
lengths fall in one window, rise in the next, and so on, so that those that are on their way together are alike. Where
somebody waits for the first outputs, they rise in the first. A line that can't be answered ends the stream, after all
lines before it have been answered; the error names it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Generic, Protocol, TypeVar

import torch

from sixfold.decoding.job import Job, JobEngine, Ticket
from sixfold.decoding.records import Line
from sixfold.text.tokenizer import checked

WINDOW = 1024  # lines that are sorted together
FIRST = 64  # of the first; each is twice as large as the one before, so that something is soon there
_CHARACTERS = 1 << 22  # or fewer, if they are as long as this
_AHEAD = 4  # windows that may be done while an earlier line is not

Lines = Iterable[str | Line | None]
Output = TypeVar("Output")


class Stopped(Exception):  # noqa: N818  (it is a wish that came true, and no error)
    """Somebody asked to stop, before all was written."""


class Session(Protocol[Output]):
    """What is done with lines."""

    @property
    def empty(self) -> Output:
        """The output of a line without a job."""

    def engine(self) -> JobEngine[Any]: ...

    def jobs(self, lines: Sequence[Line]) -> list[Job | ValueError | None]:
        """A job for each line; what is wrong with it; or None: nothing is to be done, its output is `empty`."""

    def finish(self, tickets: Sequence[Ticket]) -> list[Output]: ...


class OrderedStream(Generic[Output]):
    """One pass over lines. A None among them means that no more is there at the moment: all so far is answered.

    After a None, lines are asked for again when all so far is answered, since whoever asks may have to wait. With
    `wait`, nobody waits who asks: lines are asked for before each step and join the running batch, and `wait` is called
    where there is nothing else to do. Before each step, `stop` is asked whether to.
    """

    def __init__(
        self,
        session: Session[Output],
        lines: Lines,
        window: int = WINDOW,
        start: int = 1,
        first: int = FIRST,
        *,
        stop: Callable[[], bool] | None = None,
        wait: Callable[[], None] | None = None,
    ):
        if window < 1:
            raise ValueError(f"a window has at least one line, got {window}")
        if first < 1:
            raise ValueError(f"the first window has at least one line, got {first}")
        self.session, self.engine, self.window = session, session.engine(), window
        self.stop, self.wait = stop, wait
        self._size = min(first, window)  # of the next window
        self._hasty = first < window  # whether somebody waits for the first outputs after a pause
        self._falling = not self._hasty  # whether the next window begins with its longest
        self._lines, self._read, self._next = iter(lines), start - 1, start
        self._order: deque[Ticket | None] = deque()  # of the lines that are not answered; None: nothing is to be done
        self._submitted = 0
        self._paused = self._ended = False
        self._error: Exception | None = None  # of the line after the last in the order

    @torch.inference_mode()
    def __iter__(self) -> Iterator[Output]:
        try:
            while not self._ended or self._order:
                self._feed()
                yield from self._ready()
                if self.engine.busy:
                    self._step()
                    yield from self._ready()
            if self._error is not None:
                raise self._error
        finally:
            self._cancel(0)

    def _feed(self) -> None:
        """Window after window, until the engine has enough, or the lines end or pause."""
        while not self._ended and self.engine.hungry and len(self._order) <= _AHEAD * self.window:
            if self._paused and self.wait is None and self.engine.busy:
                return
            if self._paused and self.wait is not None and not self.engine.busy:
                self.wait()
            lines = self._next_window()
            jobs = self._make(lines) if lines else []
            self._size = min(2 * self._size, self.window) if lines else self._size
            self._submit(jobs)
            self._falling = not (self._hasty if self._paused else self._falling)
            if self._paused or not any(jobs):
                return

    def _next_window(self) -> list[Line]:
        """The next lines, up to a pause or a mistake."""
        lines, characters, self._paused = list[Line](), 0, False
        while len(lines) < self._size and characters < _CHARACTERS:
            try:
                line = next(self._lines)
            except StopIteration:
                self._ended = True
                break
            except (ValueError, OSError) as error:  # lines that come from a file name it themselves
                self._end(error)
                break
            if line is None:
                self._paused = True
                break
            self._read += 1
            whole = line if isinstance(line, Line) else Line(line)
            try:
                _check(whole)
            except ValueError as error:
                self._end(ValueError(f"line {self._read}: {error}"))
                break
            lines.append(whole)
            characters += len(whole.text)
        return lines

    def _make(self, lines: Sequence[Line]) -> list[Job | None]:
        """The jobs of lines, up to the first that is a mistake."""
        jobs, first = list[Job | None](), self._next + len(self._order)
        for number, job in enumerate(self.session.jobs(lines), first):
            if isinstance(job, ValueError):
                self._end(ValueError(f"line {number}: {job}"))
                break
            jobs.append(job)
        return jobs

    def _submit(self, jobs: Sequence[Job | None]) -> None:
        """By length; their tickets stay in the order of the lines."""
        known = [(number, job) for number, job in enumerate(jobs) if job is not None]
        known.sort(key=lambda each: each[1].tokens, reverse=self._falling)
        tickets: dict[int, Ticket] = {}
        for number, job in known:
            tickets[number] = self.engine.submit(job, self._submitted)
            self._submitted += 1
        self._order.extend(tickets.get(number) for number in range(len(jobs)))

    def _step(self) -> None:
        """One step of the engine. The first line that failed is the last of the stream."""
        if self.stop is not None and self.stop():
            raise Stopped
        failed = [ticket for ticket in self.engine.step() if ticket.error is not None]
        numbers = [number for number, ticket in enumerate(self._order) if ticket in failed] if failed else []
        if numbers:
            ticket = self._order[numbers[0]]
            assert ticket is not None
            self._cancel(numbers[0])
            self._end(ValueError(f"line {self._next + numbers[0]}: {ticket.error}"))

    def _ready(self) -> Iterator[Output]:
        """The outputs that are next in order; finished only now, so that alignments are read for many at once."""
        ready = list(takewhile(lambda ticket: ticket is None or ticket.done, self._order))
        made = iter(self.session.finish([ticket for ticket in ready if ticket is not None]) if ready else ())
        for ticket in ready:
            self._order.popleft()
            self._next += 1
            yield self.session.empty if ticket is None else next(made)

    def _end(self, error: Exception) -> None:
        """The stream ends before this line."""
        self._ended, self._error = True, error

    def _cancel(self, first: int) -> None:
        """Nobody will hear of these lines."""
        while len(self._order) > first:
            ticket = self._order.pop()
            if ticket is not None:
                self.engine.cancel(ticket)


def _check(line: Line) -> None:
    """Raise a ValueError if it is no text."""
    if not isinstance(line.text, str):
        raise ValueError(f"expected a text, got {type(line.text).__name__}")
    checked(line.text)
