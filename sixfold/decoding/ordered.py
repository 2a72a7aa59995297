"""Turns lines into outputs, in the order of the lines and as soon as they come.

Memory depends on the window, not on the number of lines.

    lines ──▶ window of lines ──▶ jobs, sorted by length ──▶ engine ──▶ outputs in the order of the lines

The engine takes jobs when its batch has room, so the batch stays full from one window to the next. Windows are sorted
alternately down and up, so that neighbours have similar lengths; if the first outputs are wanted soon, the first window
is sorted up. A line that fails ends the stream with an error that names it, after the outputs of all lines before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Generic, TypeVar

import torch

from sixfold.decoding.job import Job, JobEngine, Ticket
from sixfold.decoding.records import Line
from sixfold.models.model import Model, evaluating

WINDOW = 1024  # lines that are sorted together
FIRST = 64  # lines of the first window; each window is twice as large as the one before, up to WINDOW
_CHARACTERS = 1 << 22  # characters from which on a window is complete with fewer lines
_AHEAD = 4  # windows that may be done while an earlier line is not
_LATER = 1e9  # the order of the first line: so high that jobs submitted without an order come first

Lines = Iterable[str | Line | None]
AnyOutput = TypeVar("AnyOutput")


class Stopped(Exception):  # noqa: N818  (not an error: the caller asked for it)
    """The caller's function `stop` returned True."""


class LineSession(Generic[AnyOutput]):
    """Turns lines into jobs, has engines that run them, and turns tickets into outputs."""

    models: Sequence[Model] = ()  # that compute in this process
    empty: AnyOutput  # the output of a line without a job

    def engine(self) -> JobEngine[Any]:
        """An engine without jobs."""
        raise NotImplementedError

    def encode(self, lines: Sequence[Line]) -> Sequence[Sequence[int]]:
        raise NotImplementedError

    def job(self, line: Line, ids: Sequence[int]) -> Job | None:
        """The job of a line; None if its output is `empty`. Raises a ValueError that names the line's mistake."""
        raise NotImplementedError

    def finish(self, tickets: Sequence[Ticket]) -> list[AnyOutput]:
        """The outputs of jobs that are done."""
        raise NotImplementedError

    def jobs(self, lines: Sequence[Line]) -> list[Job | ValueError | None]:
        """For each line its job, the error of a line that has a mistake, or None if its output is `empty`."""
        errors = {number: error for number, line in enumerate(lines) if (error := line.mistake())}
        rows = iter(self.encode([line for number, line in enumerate(lines) if number not in errors]))
        return [errors.get(number) or self._try(line, next(rows)) for number, line in enumerate(lines)]

    def _try(self, line: Line, ids: Sequence[int]) -> Job | ValueError | None:
        try:
            return self.job(line, ids)
        except ValueError as error:
            return error

    def stream(self, lines: Lines, **how: Any) -> Iterator[AnyOutput]:
        """The outputs of lines, in order; the options are those of `OrderedStream`."""
        return self._evaluated(OrderedStream(self, lines, **how))

    def _evaluated(self, outputs: Iterable[AnyOutput]) -> Iterator[AnyOutput]:
        with evaluating(*self.models):
            yield from outputs

    def closing(self, outputs: Iterator[Any]) -> Iterator[Any]:
        """The outputs; then, however the stream ends, the session is closed."""
        try:
            yield from outputs
        finally:
            self.close()

    def close(self) -> None:
        """Give back what the session holds."""

    def rehearse(self, texts: Sequence[str], verb: str) -> None:
        """Raise a ValueError if one of these texts would be refused."""
        for number, (text, job) in enumerate(zip(texts, self.jobs([Line(text) for text in texts]), strict=True), 1):
            if isinstance(job, ValueError):
                raise ValueError(f"data.valid, text {number} ({text:.40}) can't be {verb}: {job}")


class OrderedStream(Generic[AnyOutput]):
    """One pass over lines. None among the lines means that no more are available at present.

    Without `wait`, reading a line may block. So after a None, all earlier lines are answered before the next one is
    read. With `wait`, reading never blocks: lines are read before each step and join the running batch, and `wait` is
    called to block when there is nothing to compute. `stop` is called before each step; True ends the stream.
    """

    def __init__(
        self,
        session: LineSession[AnyOutput],
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
        self._lines, self._next = iter(lines), start  # the number of the next line without an output
        self._order: deque[Ticket | None] = deque()  # one for each line without an output yet; None: no job
        self._submitted = 0
        self._paused = self._ended = False
        self._error: Exception | None = None  # raised after the last output

    @torch.inference_mode()
    def __iter__(self) -> Iterator[AnyOutput]:
        try:
            while not self._ended or self._order:
                self._feed()
                yield from self._ready()
                if self.engine.busy:
                    if self.stop is not None and self.stop():
                        raise Stopped
                    self.engine.step()
                    yield from self._ready()
            if self._error is not None:
                raise self._error
        finally:
            self._cancel()

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
            lines.append(line if isinstance(line, Line) else Line(line))
            characters += len(str(lines[-1].text))  # str(): the session refuses a text that is not a str
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

    def _ready(self) -> Iterator[AnyOutput]:
        """The outputs that are next in order, finished only now, so that alignments are read for many at once.

        A line that failed ends the stream when it is next.
        """
        ready = list(takewhile(_has_output, self._order))
        made = iter(self.session.finish([ticket for ticket in ready if ticket is not None]) if ready else ())
        for ticket in ready:
            self._order.popleft()
            self._next += 1
            yield self.session.empty if ticket is None else next(made)
        if self._order and self._order[0] is not None and self._order[0].error is not None:
            self._end(ValueError(f"line {self._next}: {self._order[0].error}"))
            self._cancel()

    def _end(self, error: Exception) -> None:
        """Read no more lines; raise this error after the outputs of all lines before."""
        self._ended, self._error = True, error

    def _cancel(self) -> None:
        """Cancel the lines without an output."""
        while self._order:
            ticket = self._order.pop()
            if ticket is not None:
                self.engine.cancel(ticket)


def _has_output(ticket: Ticket | None) -> bool:
    return ticket is None or (ticket.done and ticket.error is None)
