"""From lines to outputs in the same order, as the lines come. Memory depends on the window, not on the number of lines.

    lines ──▶ window of lines ──▶ jobs, sorted by length ──▶ engine ──▶ outputs in the order of the lines

The engine takes jobs when its batch has room, so the batch stays full from one window to the next. Windows are sorted
alternately down and up, so that neighbours have similar lengths; if the first outputs are wanted soon, the first window
is sorted up. A line that fails ends the stream with an error that names it, after the outputs of all lines before it.
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
FIRST = 64  # lines of the first window; each window is twice as large as the one before, up to WINDOW
_CHARACTERS = 1 << 22  # characters from which on a window is complete with fewer lines
_AHEAD = 4  # windows that may be done while an earlier line is not
_LATER = 1e9  # the order of the first line: jobs that others submit to the engine without an order are next

Lines = Iterable[str | Line | None]
Output = TypeVar("Output")


class Stopped(Exception):  # noqa: N818  (not an error: the caller asked for it)
    """The caller's function `stop` returned True."""


class Session(Protocol[Output]):
    """The methods of a session that a stream calls; see `sixfold.decoding.session.LineSession`."""

    @property
    def empty(self) -> Output: ...

    def engine(self) -> JobEngine[Any]: ...

    def jobs(self, lines: Sequence[Line]) -> list[Job | ValueError | None]: ...

    def finish(self, tickets: Sequence[Ticket]) -> list[Output]: ...


class OrderedStream(Generic[Output]):
    """One pass over lines. None among the lines means that no more are available at present.

    Without `wait`, asking for a line may block, so after a None all lines so far are answered before the next is asked
    for. With `wait`, asking never blocks: lines are asked for before each step and join the running batch, and `wait`
    is called to block when there is nothing to compute. `stop` is called before each step; True ends the stream.
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
        self._size = min(first, window)  # lines of the next window
        self._soon = first < window  # the first outputs after a pause are wanted soon: the shortest lines first
        self._falling = not self._soon  # the next window begins with its longest line
        self._lines, self._read, self._next = iter(lines), start - 1, start
        self._order: deque[Ticket | None] = deque()  # one for each line without an output yet; None: no job
        self._submitted = 0
        self._paused = self._ended = False
        self._error: Exception | None = None  # raised after the last output

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
        """Submit window after window, until the engine has enough jobs, or the lines end or pause."""
        while not self._ended and self.engine.hungry and len(self._order) <= _AHEAD * self.window:
            if self._paused and self.wait is None and self.engine.busy:
                return
            if self._paused and self.wait is not None and not self.engine.busy:
                self.wait()
            lines = self._next_window()
            jobs = self._make(lines) if lines else []
            self._size = min(2 * self._size, self.window) if lines else self._size
            self._submit(jobs)
            self._falling = not (self._soon if self._paused else self._falling)
            if self._paused or not any(jobs):
                return

    def _next_window(self) -> list[Line]:
        """The next lines, up to a pause or an error."""
        lines, characters, self._paused = list[Line](), 0, False
        while len(lines) < self._size and characters < _CHARACTERS:
            try:
                line = next(self._lines)
            except StopIteration:
                self._ended = True
                break
            except (ValueError, OSError) as error:  # the reader of a file names the line itself
                self._end(error)
                break
            if line is None:
                self._paused = True
                break
            self._read += 1
            line = line if isinstance(line, Line) else Line(line)
            try:
                _check(line)
            except ValueError as error:
                self._end(ValueError(f"line {self._read}: {error}"))
                break
            lines.append(line)
            characters += len(line.text)
        return lines

    def _make(self, lines: Sequence[Line]) -> list[Job | None]:
        """The jobs of lines, up to the first that is refused."""
        jobs, first = list[Job | None](), self._next + len(self._order)
        for number, job in enumerate(self.session.jobs(lines), first):
            if isinstance(job, ValueError):
                self._end(ValueError(f"line {number}: {job}"))
                break
            jobs.append(job)
        return jobs

    def _submit(self, jobs: Sequence[Job | None]) -> None:
        """Submit jobs sorted by length; `_order` keeps the order of their lines."""
        known = [(number, job) for number, job in enumerate(jobs) if job is not None]
        known.sort(key=lambda each: each[1].tokens, reverse=self._falling)
        tickets: dict[int, Ticket] = {}
        for number, job in known:
            tickets[number] = self.engine.submit(job, _LATER + self._submitted)
            self._submitted += 1
        self._order.extend(tickets.get(number) for number in range(len(jobs)))

    def _step(self) -> None:
        """One step of the engine. If lines fail, the stream ends before the first of them."""
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
        """The outputs that are next in order, finished only now, so that alignments are read for many at once."""
        ready = list(takewhile(lambda ticket: ticket is None or ticket.done, self._order))
        made = iter(self.session.finish([ticket for ticket in ready if ticket is not None]) if ready else ())
        for ticket in ready:
            self._order.popleft()
            self._next += 1
            yield self.session.empty if ticket is None else next(made)

    def _end(self, error: Exception) -> None:
        """Read no more lines; raise this error after the outputs of all lines before."""
        self._ended, self._error = True, error

    def _cancel(self, first: int) -> None:
        """Cancel the lines from this index of `_order` on."""
        while len(self._order) > first:
            ticket = self._order.pop()
            if ticket is not None:
                self.engine.cancel(ticket)


def _check(line: Line) -> None:
    """Raise a ValueError unless its text is valid."""
    if not isinstance(line.text, str):
        raise ValueError(f"expected a text, got {type(line.text).__name__}")
    checked(line.text)
