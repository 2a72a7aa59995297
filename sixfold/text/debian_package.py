"""The files inside a Debian package, read without unpacking anything to disk.

A .deb is an `ar` archive: a line "!<arch>", then members, each behind a header of 60 bytes,

    name 16 | time 12 | owner 6 | group 6 | mode 8 | size 10 | "`\\n"

and padded to an even length. `control.tar.*` describes the package; `data.tar.*` holds its files. Paths, links and
sizes in the archive are not trusted: names are only compared, never opened.
"""

from __future__ import annotations

import importlib
import io
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.parser import Parser
from pathlib import Path
from typing import IO, Any

from sixfold.disk.reading import regular_file

MAGIC = b"!<arch>\n"
# Modules that read each compression: not every Python has all; the standard library has zstd since 3.14.
READERS = {"xz": ["lzma"], "gz": ["gzip"], "zst": ["compression.zstd", "zstandard"]}
LARGEST_FILE = 8 << 20  # a page of help has some kilobytes
LARGEST_ARCHIVE = 1 << 30


class Deb:
    """A package: its name, its version, and its files."""

    def __init__(self, path: Path):
        self.path = path
        with _readable(path):
            fields = self._control()
        self.name, self.version = fields["Package"] or "", fields["Version"] or ""
        if not self.name or not self.version:
            raise ValueError(f"{path} lacks the name or the version of a package; is it a Debian package?")

    def files(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
        """The names and texts of the regular files for whose names `wanted` is true."""
        with _readable(self.path):
            for name, content in self._read("data.tar", wanted):
                yield name, content.decode("utf-8")

    def _control(self) -> Any:
        for _, content in self._read("control.tar", lambda name: name.removeprefix("./") == "control"):
            return Parser().parsestr(content.decode("utf-8"), headersonly=True)
        return {"Package": None, "Version": None}

    def _read(self, archive: str, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
        member, packed = _find(self.path, archive)
        unpacked = _Bounded(_unpack(member, io.BytesIO(packed), self.path), self.path)
        with tarfile.open(fileobj=unpacked, mode="r|") as tar:  # type: ignore[call-overload]
            for entry in tar:
                # Not `isreg`: it accepts sparse files, too, which can claim any size in a few bytes.
                if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or entry.sparse or not wanted(entry.name):
                    continue
                if entry.size > LARGEST_FILE:
                    raise ValueError(f"{self.path}: {entry.name} claims {entry.size:,} bytes, too many for a help page")
                content = tar.extractfile(entry)
                assert content is not None
                yield entry.name, content.read()


class _Bounded:
    """A stream that raises a ValueError beyond LARGEST_ARCHIVE bytes."""

    def __init__(self, stream: IO[bytes], path: Path):
        self.stream, self.path, self.left = stream, path, LARGEST_ARCHIVE

    def read(self, size: int) -> bytes:
        try:
            block = self.stream.read(size)
        except Exception as error:  # each decompressor raises its own; nothing else can fail here
            raise ValueError(f"{self.path} is damaged or cut short ({error}); fetch it again") from None
        self.left -= len(block)
        if self.left < 0:
            raise ValueError(f"{self.path} unpacks to more than {LARGEST_ARCHIVE:,} bytes, too many for a help package")
        return block


def _find(path: Path, wanted: str) -> tuple[str, bytes]:
    """The first member of an `ar` archive whose name begins with `wanted`."""
    size = path.stat().st_size
    with open(path, "rb", opener=regular_file) as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{path} is not a Debian package: it does not begin with {MAGIC[:-1].decode()!r}")
        while header := file.read(60):
            length = header[48:58].strip()
            if len(header) < 60 or header[58:] != b"`\n" or not length.isdigit():
                raise ValueError(
                    f"{path} is damaged or cut short: no member begins at byte {file.tell() - len(header)}"
                )
            if file.tell() + int(length) > size:
                raise ValueError(f"{path} is cut short: it has {size:,} bytes, but should have more; fetch it again")
            name = header[:16].decode("latin-1").strip().rstrip("/")
            if name.startswith(wanted):
                return name, file.read(int(length))
            file.seek(int(length) + int(length) % 2, io.SEEK_CUR)
    raise ValueError(f"{path} has no {wanted}; is it a complete Debian package?")


def _unpack(name: str, packed: IO[bytes], path: Path) -> IO[bytes]:
    kind = name.rpartition(".")[2]
    if kind == "tar":
        return packed
    if kind not in READERS:
        raise ValueError(f"{path}: {name} has a compression that sixfold can't read (it reads xz, zst and gz)")
    for module in READERS[kind]:
        try:
            reader = importlib.import_module(module)
        except ImportError:
            continue
        opened: IO[bytes] = reader.open(packed)
        return opened
    raise ValueError(
        f"{path}: {name} can't be read by this Python, which lacks the module {' or '.join(READERS[kind])}; Debian's "
        "own packages need lzma, those of other distributions often zstandard (pip install zstandard)"
    )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Name the file in errors about damage."""
    try:
        yield
    except (tarfile.TarError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); fetch it again") from None
