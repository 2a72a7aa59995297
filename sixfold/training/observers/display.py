"""The display of a run, on stderr.

On a terminal, the curve of the loss and two lines are redrawn in place, below lasting lines for validations and
events:

    step 1,000  valid  loss 0.412  perplexity 1.510  pronunciation 34.1  best so far
    7.41 ┤█▅
         │███▅▃▂▁
    0.46 ┤██████████▇▆▅▅▄▄▃
    1,234/20,000 ━━━━━━━──────────────────────────────── ETA 0:12:34
    loss 0.456  perplexity 1.578  rate 9.8e-04  4,321 tokens/s  padding 1.2%

Elsewhere, each record of the log is one plain line.
"""

from __future__ import annotations

import io
import math
import sys
import time
from typing import Any, Protocol, Self, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sixfold.scoring.outputs import PREFIX
from sixfold.terminal import printable
from sixfold.training.observers.curve import TerminalCurve
from sixfold.training.observers.observer import Observer, Record, StepDone

_BETWEEN_DRAWINGS = 0.3  # seconds: a drawing takes about a millisecond, a step often no more than thirty
_BETWEEN_LINES = 10.0  # seconds between lines of progress, where lines can't be redrawn
_CELLS = 40  # width of the bar
_HEIGHT = 5  # lines of the curve
_MEMORY = 0.98  # decay of the running means per step
_SHOWN_ELSEWHERE = ("kind", "step", "best", "reason")
_OF_EVERY_STEP = ("epoch", "loss", "perplexity", "learning_rate", "gradient", "tokens", "padding", "seconds")
NO_BEST = "no validation has given a finite score so far, so the run's model is that of the last checkpoint"


class Display(Observer):
    """Shows a run's progress: on a terminal with lines redrawn in place, elsewhere as plain lines."""

    def __init__(self, stream: TextIO | None = None):
        stream = sys.stderr if stream is None else stream
        # sys.stderr is None in a process whose stderr is closed.
        self._screen = NoScreen() if stream is None else _screen(cast("TextIO", _Lasting(stream)))
        self._pace, self._curve = StepSpeed(), TerminalCurve()
        self._next = 0.0  # earliest time of the next drawing
        self._last: Record | None = None  # the last "train" record, if it was not written as a lasting line
        self._told: dict[str, float] = {}  # work → time of its last line of progress

    def begin(self, step: int, steps: int) -> None:
        self._pace.begin(step, steps)

    def step(self, done: StepDone) -> None:
        self._pace.add(done.step, done.steps, done.loss, done.tokens, done.seconds)
        self._pace.unit = done.unit
        if not self._screen.alive:
            return
        self._curve.add(done.loss)
        if time.monotonic() >= self._next:
            state = numbers(self._pace.loss, done.rate, self._pace.speed, done.padding, done.unit)
            ahead = f"{bar(done.step, done.steps)} ETA {clock(self._pace.left())}"
            self._draw("\n".join([*self._curve.draw(_HEIGHT), ahead, state]))

    def record(self, record: Record) -> None:
        if record["kind"] == "train" and self._screen.alive:
            self._last = record
            return
        if record["kind"] == "stopped":
            self._keep_last()
        self.say(sentence(record, self._pace))

    def say(self, text: str) -> None:
        """Print a lasting line."""
        self._screen.lasting(printable(text))

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Show the progress of work before training."""
        now, complete = time.monotonic(), total is not None and done >= total
        if self._screen.alive:
            if complete:
                self._screen.close()
            elif now >= self._next:
                self._draw(f"{printable(what)}  {bar(done, total)}")
        elif complete or now - self._told.setdefault(what, now) >= _BETWEEN_LINES:
            self._told[what] = now
            self.say(f"{what}: {_of(done, total)}")

    def close(self) -> None:
        """Remove the redrawn lines, and print the last record."""
        self._screen.close()
        self._keep_last()

    def _keep_last(self) -> None:
        if self._last is not None:
            self.say(sentence(self._last, self._pace))
            self._last = None

    def _draw(self, text: str) -> None:
        self._screen.living(text)
        self._next = time.monotonic() + _BETWEEN_DRAWINGS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Quiet(Display):
    """Shows nothing: for all processes but the first."""

    def __init__(self) -> None:
        super().__init__()
        self._screen = NoScreen()


class Screen(Protocol):
    """The output of a display."""

    alive: bool  # whether lines can change in place

    def lasting(self, text: str) -> None:
        """A line that stays."""

    def living(self, text: str) -> None:
        """Lines that replace those drawn before."""

    def close(self) -> None:
        """Remove the redrawn lines."""


class NoScreen:
    """Shows nothing."""

    alive = False

    def lasting(self, text: str) -> None:
        pass

    def living(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class LogScreen:
    """A file, a pipe, the journal of a server: plain lines without control codes."""

    alive = False

    def __init__(self, stream: TextIO):
        self._stream = stream

    def lasting(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def living(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class LiveScreen:
    """Lines redrawn in place at the bottom, and lasting lines above them."""

    alive = True

    def __init__(self, console: Console):
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)

    def lasting(self, text: str) -> None:
        self._console.print(Text(text))  # wrapped between words: the terminal would break numbers

    def living(self, text: str) -> None:
        self._live.start()
        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

    def close(self) -> None:
        self._live.stop()


def _screen(stream: TextIO) -> Screen:
    console = Console(file=stream, markup=False, highlight=False, emoji=False)
    return LiveScreen(console) if stream.isatty() and not console.is_dumb_terminal else LogScreen(stream)


class StepSpeed:
    """Running means over the last steps, and the estimated time left."""

    def __init__(self) -> None:
        self.steps = self._from = self._at = 0
        self.unit = "tokens"  # of `speed`
        self._began = time.monotonic()
        self._loss = self._scored = self._tokens = self._seconds = 0.0

    def begin(self, step: int, steps: int) -> None:
        self.steps, self._from, self._at, self._began = steps, step, step, time.monotonic()

    def add(self, step: int, steps: int, loss: float, tokens: float, seconds: float) -> None:
        self._at, self.steps = step, steps
        self._tokens = self._tokens * _MEMORY + tokens
        self._seconds = self._seconds * _MEMORY + seconds
        if math.isfinite(loss):
            self._loss = self._loss * _MEMORY + loss * tokens
            self._scored = self._scored * _MEMORY + tokens

    @property
    def loss(self) -> float:
        return self._loss / self._scored if self._scored else math.nan

    @property
    def speed(self) -> float:
        """Scored targets per second of training."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def left(self) -> float | None:
        """Estimated seconds to the last step, at the average speed of this process, validations included."""
        done = self._at - self._from
        if not self.steps:
            return None
        return (time.monotonic() - self._began) / done * max(self.steps - self._at, 0) if done > 0 else None


class _Lasting(io.TextIOBase):
    """A stream that ignores errors of writing: a run does not end because its pipe was closed."""

    def __init__(self, stream: TextIO):
        self._stream, self._gone = stream, False

    def write(self, text: str) -> int:
        if not self._gone:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                self._gone = True
        return len(text)

    def flush(self) -> None:
        if not self._gone:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._gone = True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding or "utf-8"


def sentence(record: Record, pace: StepSpeed) -> str:
    """A record of the log as a readable line."""
    step, kind = f"step {record['step']:,}", str(record["kind"])
    if kind == "train":
        of = f"/{pace.steps:,}" if pace.steps else ""
        rest = numbers(record["loss"], record["learning_rate"], pace.speed, record["padding"], pace.unit)
        more = "".join(f"  {k} {number(v)}" for k, v in record.items() if k not in (*_SHOWN_ELSEWHERE, *_OF_EVERY_STEP))
        return f"{step}{of}  epoch {record['epoch']}  {rest}{more}  ETA {clock(pace.left())}"
    shown = {k: v for k, v in record.items() if k not in _SHOWN_ELSEWHERE and not k.startswith(PREFIX)}
    named = "  ".join(f"{k} {number(v)}" for k, v in shown.items())
    reason = f": {record['reason']}" if record.get("reason") else ""
    best = "best so far" if record.get("best") is True else ""
    return "  ".join(part for part in (step, f"{kind}{reason}", named, best) if part)


def numbers(loss: float | str, rate: float, speed: float, padding: float, unit: str = "tokens") -> str:
    loss = float(loss)  # the log holds "NaN" as a string
    perplexity = f"{math.exp(loss):,.3f}" if loss < 20 else "—"
    return f"loss {loss:.3f}  perplexity {perplexity}  rate {rate:.1e}  {speed:,.0f} {unit}/s  padding {padding:.1%}"


def number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f"{value:.3f}" if 0.1 <= abs(value) < 10 else f"{value:.4g}"


def clock(seconds: float | None) -> str:
    """3723 → 1:02:03"""
    if seconds is None:
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def bar(done: int, total: int | None) -> str:
    if not total:
        return _of(done, total)
    filled = min(_CELLS, _CELLS * done // total)
    return f"{_of(done, total)} {'━' * filled}{'─' * (_CELLS - filled)}"


def _of(done: int, total: int | None) -> str:
    return f"{done:,}/{total:,}" if total else f"{done:,}"
