"""The rows of a corpus with the file and line of each, read by the readers of training text.

The readers stop at the first byte that is not UTF-8. Here files are opened by `TrackedFile`, which puts U+FFFD in its
place, counts lines, and remembers those that were read since the last row, to write them again.
"""

from __future__ import annotations

import codecs
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sixfold.text.file_kinds import file_ending
from sixfold.text.forms import TextForm
from sixfold.text.lines import BOM, Opener, Unpacked
from sixfold.text.sources import Source

UNDECODABLE = "\ufffd"  # in place of bytes that are not UTF-8
_TABLES = (".tsv", ".csv", ".jsonl")  # files whose lines hold more than a text


class Location(NamedTuple):
    """Where a text is."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Item(NamedTuple):
    """A pair, a text with a label, or a line or document of plain text."""

    texts: tuple[str, ...]  # source and target, or one text
    label: str
    places: tuple[Location, ...]  # of the texts; one, if both are on one line
    before: bytes  # the lines of a table before this row, such as its header
    stored: tuple[bytes, ...]  # the line of each file, to be written again


class TrackedFile(Unpacked):
    """An unpacked file that is read by lines."""

    def __init__(self, path: Path):
        self._file = gzip.open(path) if path.suffix == ".gz" else open(path, "rb")  # noqa: SIM115 (closed by `close`)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._complete = True  # whether the last line was read to its end
        self._read: list[tuple[int, bytes]] = []  # lines with their numbers
        self.line = 0  # the number of the last line, from 1
        self.mark = False  # whether the file begins with a byte order mark
        self.windows = 0  # lines that end in \r\n
        self.broken = 0  # lines with bytes that are not UTF-8

    def readline(self, size: int | None = -1, /) -> bytes:
        most = -1 if size is None else size
        raw = self._file.readline(most)
        if raw and self._complete:
            self.line += 1
        self._complete = raw.endswith(b"\n")
        self.mark = self.mark or (self.line == 1 and raw.startswith(BOM))
        self.windows += raw.endswith(b"\r\n")
        repaired = self._repaired(raw, ends=not self._complete and (most < 0 or len(raw) < most))
        if repaired:
            self._read.append((self.line, repaired))
        return repaired

    def take(self) -> list[tuple[int, bytes]]:
        """The lines since the last call, without byte order mark and with \\n at their ends."""
        taken, self._read = self._read, []
        return [(number, _plain(raw)) for number, raw in taken]

    def close(self) -> None:
        self._file.close()
        super().close()

    def _repaired(self, raw: bytes, ends: bool) -> bytes:
        waiting, _ = self._decoder.getstate()  # a character that is not complete yet
        if not waiting and raw.isascii():
            return raw
        text = self._decoder.decode(raw, final=ends)
        self.broken += text.count(UNDECODABLE) > raw.count(UNDECODABLE.encode())
        return text.encode()


class Reader:
    """Reads one source, once. `files` has what was found in its files."""

    def __init__(self, source: Source[Any], form: TextForm):
        self.source, self.form = source, form
        self.files: dict[Path, TrackedFile] = {}
        self._is_table = any(file_ending(path.name) in _TABLES for path in source.files)

    def __iter__(self) -> Iterator[Item]:
        rows = self._labelled if self.form.has_labels else self._pairs if self.form.has_pairs else self._plain
        return rows(self.source, self._open)

    def _open(self, path: Path) -> TrackedFile:
        self.files[path] = TrackedFile(path)
        return self.files[path]

    def _labelled(self, source: Source[Any], opener: Opener) -> Iterator[Item]:
        for text, label, line in source.read(opener):
            yield self._row((text,), label, line)

    def _pairs(self, source: Source[Any], opener: Opener) -> Iterator[Item]:
        for number, texts in enumerate(source.read(opener), 1):
            if not source.files:
                yield Item(texts, "", (Location(source.name, number),), b"", ())
            elif self._is_table:
                yield self._row(texts, "", None)
            else:
                yield self._lines(texts)

    def _plain(self, source: Source[Any], opener: Opener) -> Iterator[Item]:
        document: list[str] = []
        for text, ends in source.read(opener):
            if not self._is_table:
                if not ends:
                    yield self._lines((text.removesuffix("\n"),), "\n" if text.endswith("\n") else "")
            elif ends:
                yield self._row(("".join(document),), "", None)
                document = []
            else:
                document.append(text)

    def _lines(self, texts: tuple[str, ...], end: str = "\n") -> Item:
        """A line of each file."""
        files = [self.files[path] for path in self.source.files]
        for file in files:
            file.take()
        places = tuple(Location(str(path), file.line) for path, file in zip(self.source.files, files, strict=True))
        return Item(texts, "", places, b"", tuple(f"{text}{end}".encode() for text in texts))

    def _row(self, texts: tuple[str, ...], label: str, line: int | None) -> Item:
        """A row of a table that begins at this line, by default the last one that was read."""
        (path,) = self.source.files
        lines = self.files[path].take()
        line = self.files[path].line if line is None else line
        before, row = (b"".join(raw for number, raw in lines if (number < line) is header) for header in (True, False))
        return Item(texts, label, (Location(str(path), line),), before, (row,))


def _plain(raw: bytes) -> bytes:
    raw = raw.removeprefix(BOM)
    return raw[:-2] + b"\n" if raw.endswith(b"\r\n") else raw
