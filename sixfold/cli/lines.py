"""Lines in and lines out: reads lines, writes outputs, and shows progress."""

from __future__ import annotations

import errno
import io
import json
import os
import select
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import typer

from sixfold.cli.streams import OUTPUT, abandon_output
from sixfold.disk.atomic import path_in_errors
from sixfold.runs.run import is_part_of_run
from sixfold.terminal import printable, shown
from sixfold.text import lines
from sixfold.text.file_kinds import refuse_bytes, refuse_records, warnings_of

_STDIN = "standard input"
_CHUNK = 1 << 16  # bytes of standard input read at once
_ROUND = 6  # decimals of numbers in JSONL


def read_lines(path: Path | None) -> Iterator[str]:
    """The lines of a file, or of standard input (also "-")."""
    texts = arriving_lines(path)
    for line in texts:
        if line is not None:
            yield line
        elif isinstance(texts, StandardInput):
            texts.wait()


def arriving_lines(path: Path | None) -> Iterable[str | None]:
    """The lines of `read_lines`, with None whenever standard input has no line ready."""
    if path is None or str(path) == "-":
        return StandardInput()
    return (_looked_at(line, number, str(path)) for number, line in enumerate(lines.read_lines(path), 1))


def _looked_at(line: str, number: int, name: str) -> str:
    """A line without its end; the first one may get a warning."""
    for warning in warnings_of(line, name) if number == 1 else ():
        typer.echo(printable(warning), err=True)
    return line.removesuffix("\n")


def read_beside(path: Path, what: str) -> Iterator[str]:
    """The lines of a file that has a line for each line of the input; a ValueError if it has too few."""
    number = 0
    for line in read_lines(path):
        number += 1
        yield line
    raise ValueError(f"{path} has only {number:,} lines of {what}, but the input has more")


class StandardInput:
    """The lines of standard input as they arrive, without blocking: None while none is ready."""

    def __init__(self) -> None:
        try:
            self._descriptor: int | None = sys.stdin.fileno()
        except (OSError, AttributeError, io.UnsupportedOperation):  # sys.stdin was replaced by another object
            self._descriptor = None

    def __iter__(self) -> Iterator[str | None]:
        number = 0
        for raw in self._raw() if self._descriptor is not None else map(_without_end, sys.stdin.buffer):
            if raw is None:
                yield None
                continue
            number += 1
            if number == 1:
                raw = lines.without_mark(raw)
                refuse_bytes(raw, _STDIN)
            yield _looked_at(lines.decode_line(raw, number, _STDIN), number, _STDIN)

    def wait(self) -> None:
        """Block until input has arrived, or has ended."""
        self._has_come(None)

    def _has_come(self, seconds: float | None) -> bool:
        return self._descriptor is None or bool(select.select([self._descriptor], [], [], seconds)[0])

    def _raw(self) -> Iterator[bytes | None]:
        assert self._descriptor is not None
        line, chunk = bytearray(), b"more"
        while chunk and len(line) <= lines.LONGEST_LINE + _CHUNK:  # `decode_line` refuses a longer one
            while not self._has_come(0):
                yield None
            chunk = _read(self._descriptor)
            first, *more = chunk.split(b"\n")
            line += first
            for part in more:
                yield bytes(line).removesuffix(b"\r")
                line = bytearray(part)
        if line:
            yield bytes(line)


def _without_end(raw: bytes) -> bytes:
    return raw[:-1].removesuffix(b"\r") if raw.endswith(b"\n") else raw


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except OSError as error:
        why = "it is closed" if error.errno == errno.EBADF else error.strerror
        raise ValueError(f"{_STDIN} can't be read: {why}") from None


class Output:
    """A file, or standard output. It is flushed after each text, so that an interruption loses no finished text."""

    _path = Path(OUTPUT)  # named by errors

    def __init__(self, path: Path | None = None):
        self.terminal = path is None and sys.stdout.isatty()
        self._path = path or self._path
        self._own = None if path is None else open(path, "wb")  # noqa: SIM115  (this is one itself)
        self._stream: IO[bytes] = self._own or sys.stdout.buffer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._own is not None:
            self._own.close()

    def write(self, *fields: str, end: str = "\n") -> None:
        """Write texts with tabs between them. On a terminal, control characters inside the texts become escapes."""
        texts = map(shown, fields) if self.terminal else fields
        with path_in_errors(self._path):
            self._stream.write(("\t".join(texts) + end).encode())
            self._stream.flush()


class ProgressLine:
    """Counts finished lines on standard error: continuously on a terminal, and always at the end."""

    def __init__(self, unit: str = "lines", show: bool = True):
        self.unit, self.done, self.tokens = unit, 0, 0
        self._live = show and sys.stderr.isatty()
        self._began = self._told = time.monotonic()

    def count(self, tokens: int) -> None:
        self.done, self.tokens = self.done + 1, self.tokens + tokens
        if self._live and time.monotonic() - self._told > 0.2:
            self._told = time.monotonic()
            sys.stderr.write(f"\r\x1b[K{self}")
            sys.stderr.flush()

    def __str__(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-9)
        pace = f"{self.done / seconds:,.1f} {self.unit}/s, {self.tokens / seconds:,.0f} tokens/s"
        unit = self.unit if self.done != 1 else self.unit.removesuffix("s")
        return f"{self.done:,} {unit} in {seconds:,.1f} s ({pace})"

    def say(self, message: str) -> None:
        """Print a message on a line of its own."""
        if self._live:
            sys.stderr.write("\r\x1b[K")
        typer.echo(printable(message), err=True)

    def close(self, how: str = "") -> None:
        self.say(f"{how}{self}")


def tell(news: str, done: bool = False) -> None:
    """Show progress. A terminal shows each message in place of the one before, a pipe only those with `done`."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{printable(news)}" + ("\n" if done else ""))
        sys.stderr.flush()
    elif done:
        typer.echo(printable(news), err=True)


@contextmanager
def ending_well() -> Iterator[None]:
    """End without a traceback after Ctrl-C (exit code 130), or when the reader of the output closes it (0)."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        abandon_output()
        raise typer.Exit(0) from None


def check_files(out: Path | None, *texts: Path | None, terms: Path | None = None) -> None:
    """Raise a ValueError if a file of texts is missing, is a directory, has columns, or is also the output.

    The output must not replace a part of a run either.
    """
    if out is not None and is_part_of_run(out):
        raise ValueError(f"--out {out} would replace a part of the run {out.parent}; give another file")
    for path in (*texts, terms):
        if path is None or str(path) == "-":
            continue
        if path.is_dir():
            raise ValueError(f"{str(path)!r} is a directory; give a file of texts")
        if not path.exists():
            raise ValueError(f"there is no file {str(path)!r}")
        if path is not terms:  # terms are separated by tabs
            refuse_records(path)
        if out is not None and out.exists() and out.samefile(path):
            raise ValueError(f"--out {out} is also the input; give another file")


def one_line(text: str) -> str:
    """A text with spaces in place of line ends, for output with one line per text."""
    return text.replace("\n", " ")


def json_line(record: dict[str, Any]) -> str:
    """JSON on one line, also for readers that take U+2028, U+2029 or U+0085 for the end of a line."""
    text = json.dumps(_rounded(record), ensure_ascii=False)
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").replace("\x85", "\\u0085")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _ROUND)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
