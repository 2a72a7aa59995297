"""The reader of lines of text, used for training data, scoring and the command line.

A line ends at \\n or \\r\\n only; U+2028 does not split. The last line may lack its \\n. A byte order mark at the start
of a file is dropped. A file whose name ends in .gz is unpacked. A line has at most LONGEST_LINE bytes, since a few
kilobytes of .gz can unpack to one line of gigabytes. Lines are read as they are needed.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from sixfold.text.file_kinds import refuse_bytes

LONGEST_LINE = 16 << 20  # bytes, without its end
BOM = b"\xef\xbb\xbf"  # byte order mark
_PART = 1 << 16  # bytes that are read at once if a line may have any length


class Unpacked(io.BufferedIOBase):
    """A file that its opener has unpacked: it is not unpacked again, even if its name ends in .gz."""


Opener = Callable[[Path], io.BufferedReader | Unpacked]  # returns the stored bytes of a file, or unpacked ones


def open_stored(path: Path) -> io.BufferedReader:
    """The stored bytes of a file, not unpacked."""
    return open(path, "rb")


def read_lines(path: Path, opener: Opener = open_stored) -> Iterator[str]:
    """The lines of a file with their ends."""
    for number, raw in enumerate(_raw_parts(path, LONGEST_LINE + 1, opener), 1):
        yield decode_line(raw, number, str(path))


def read_parts(path: Path, opener: Opener = open_stored) -> Iterator[str]:
    """The text of a file line by line; a line may be of any length, and a long one comes in several parts."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    number, column = 1, 0  # of the next byte
    for raw in _raw_parts(path, _PART, opener):
        try:
            yield decoder.decode(raw)
        except UnicodeDecodeError as error:
            raise _not_utf8(error, column + len(raw) - len(error.object), number, str(path)) from None
        number, column = (number + 1, 0) if raw.endswith(b"\n") else (number, column + len(raw))
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _not_utf8(error, column - len(error.object), number, str(path)) from None


def decode_line(raw: bytes, number: int, name: str) -> str:
    """A line as text; errors name the line."""
    if len(raw) - raw.endswith(b"\n") > LONGEST_LINE:
        raise too_long(number, name)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(error, 0, number, name) from None


def without_mark(raw: bytes) -> bytes:
    """The first bytes of a text, without a byte order mark."""
    return raw.removeprefix(BOM)


def too_long(number: int, name: str) -> ValueError:
    return ValueError(f"{name}, line {number} has more than {LONGEST_LINE:,} bytes; break it into shorter lines")


def _not_utf8(error: UnicodeDecodeError, before: int, number: int, name: str) -> ValueError:
    """The error for bytes that are not UTF-8; `before` is the number of bytes of the line before `error.object`."""
    found = f"byte 0x{error.object[error.start]:02x} at column {before + error.start + 1}"
    return ValueError(f"{name}, line {number}: {found} is not UTF-8 ({error.reason}); convert the text")


def _raw_parts(path: Path, limit: int, opener: Opener) -> Iterator[bytes]:
    """The lines of a file with their ends; a line of more than `limit` bytes comes in several parts."""
    number = 0
    try:
        with opener(path) as stored, _unpacked(stored, path) as file:
            raw = without_mark(_part(file, limit + len(BOM)))
            refuse_bytes(raw, str(path))
            while raw:
                yield raw
                number += raw.endswith(b"\n")
                raw = _part(file, limit)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged after line {number}: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None


def _unpacked(stored: io.BufferedReader | Unpacked, path: Path) -> io.BufferedIOBase:
    packed = path.suffix == ".gz" and not isinstance(stored, Unpacked)
    return gzip.GzipFile(fileobj=stored) if packed else stored


def _part(file: io.BufferedIOBase, limit: int) -> bytes:
    """Read at most `limit` bytes of a line, or one more; a carriage return before the line feed is dropped."""
    raw = file.readline(limit)
    if raw.endswith(b"\r"):
        raw += file.readline(1)  # the line feed, if the limit fell before it
    return raw[:-2] + b"\n" if raw.endswith(b"\r\n") else raw
