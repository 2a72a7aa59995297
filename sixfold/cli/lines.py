"""Lines in and lines out: how verbs read them, write them, and tell how far they are."""

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
from sixfold.disk.atomic import naming
from sixfold.terminal import printable, shown
from sixfold.text import lines
from sixfold.text.file_kinds import refuse_bytes, refuse_records, warnings_of

_STDIN = "standard input"
_CHUNK = 1 << 16  # bytes of it that are read at once
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
    """The same, but None where none comes at the moment."""
    if path is None or str(path) == "-":
        return StandardInput()
    return (_looked_at(line, number, str(path)) for number, line in enumerate(lines.read_lines(path), 1))


def _looked_at(line: str, number: int, name: str) -> str:
    """A line without its end; the first one may get a warning."""
    for warning in warnings_of(line, name) if number == 1 else ():
        typer.echo(printable(warning), err=True)
    return line.removesuffix("\n")


def read_beside(path: Path, what: str) -> Iterator[str]:
    """The lines of a file that goes along with the input, line by line; when there are too few, it says so."""
    number = 0
    for line in read_lines(path):
        number += 1
        yield line
    raise ValueError(f"{path} has only {number:,} lines of {what}, but the input has more")


class StandardInput:
    """Its lines as they come, without waiting: None where there is none at the moment."""

    def __init__(self) -> None:
        try:
            self._descriptor: int | None = sys.stdin.fileno()
        except (OSError, AttributeError, io.UnsupportedOperation):  # somebody put something else in its place
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
        """Until something has come, or the input has ended."""
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
    """A file, or standard output. Each text is out before the next is begun, so that what is finished stays."""

    _path = Path(OUTPUT)  # which errors name

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
        """Texts with tabs between; only in the texts themselves are control characters shown as escapes."""
        texts = map(shown, fields) if self.terminal else fields
        with naming(self._path):
            self._stream.write(("\t".join(texts) + end).encode())
            self._stream.flush()


class ProgressLine:
    """How many lines are done, on standard error: as it goes if that is a terminal, and in the end in any case."""

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
        """A message between the lines."""
        if self._live:
            sys.stderr.write("\r\x1b[K")
        typer.echo(printable(message), err=True)

    def close(self, how: str = "") -> None:
        self.say(f"{how}{self}")


def tell(news: str, done: bool = False) -> None:
    """On a terminal what is being done makes way for how it ended; elsewhere only how it ended is told."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{printable(news)}" + ("\n" if done else ""))
        sys.stderr.flush()
    elif done:
        typer.echo(printable(news), err=True)


@contextmanager
def ending_well() -> Iterator[None]:
    """Ctrl-C and a reader that has enough are ways to end, and no mistakes."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        abandon_output()
        raise typer.Exit(0) from None


def check_files(out: Path | None, *texts: Path | None, terms: Path | None = None) -> None:
    """Raise a ValueError if a file of texts is not there, or is none, or the output would take its place."""
    for path in (*texts, terms):
        if path is None or str(path) == "-":
            continue
        if path.is_dir():
            raise ValueError(f"{str(path)!r} is a directory, and a file of texts is read here")
        if not path.exists():
            raise ValueError(f"there is no file {str(path)!r}")
        if path is not terms:  # which has tabs between
            refuse_records(path)
        if out is not None and out.exists() and out.samefile(path):
            raise ValueError(f"--out {out} is what is to be read: give another file")


def one_line(text: str) -> str:
    """A text without ends of lines, for where a line stands for a line."""
    return text.replace("\n", " ")


def json_line(record: dict[str, Any]) -> str:
    """JSON that is one line to whoever reads it, also where U+2028 and its like are taken for ends of lines."""
    text = json.dumps(_rounded(record), ensure_ascii=False)
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").replace("\x85", "\\u0085")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _ROUND)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
