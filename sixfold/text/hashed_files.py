"""Hashes files while they are read, so that the hash is that of the bytes that were used."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sixfold.disk.reading import regular_file

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BLOCK = 1 << 17  # bytes that are read and hashed at once


class HashedFiles:
    """Opens files, and records the SHA-256 of each when it has been read to its end.

    A file may be read several times. If its content has changed, reading its end raises a ValueError.
    """

    def __init__(self) -> None:
        self._hashes: dict[Path, str] = {}

    def open(self, path: Path) -> io.BufferedReader:
        """The stored bytes of a file, to be read to the end."""
        file = open(path, "rb", buffering=0, opener=regular_file)  # noqa: SIM115 (closed with the reader)
        return io.BufferedReader(_HashedBytes(file, partial(self._note, path)), _BLOCK)

    def hash_of(self, path: Path) -> str:
        """The SHA-256 of a file that has been read to its end, in hexadecimal digits."""
        assert path in self._hashes, f"{path} has not been read to its end"
        return self._hashes[path]

    def _note(self, path: Path, digest: str) -> None:
        if self._hashes.setdefault(path, digest) != digest:
            raise ValueError(f"{path} has changed since it was first read; start again when it is no longer written to")


class _HashedBytes(io.RawIOBase):
    """The bytes of a file; at its end, `at_end` is called with their SHA-256."""

    def __init__(self, file: io.FileIO, at_end: Callable[[str], None]):
        self._file, self._at_end = file, at_end
        self._digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        count = self._file.readinto(buffer)
        self._digest.update(memoryview(buffer)[:count])
        if not count:
            self._at_end(self._digest.hexdigest())
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
