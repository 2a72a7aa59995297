"""Hashes of files and records, to detect damage on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sixfold.disk.reading import regular_file

_HASH = "hash"  # the key under which a record holds its own hash
_BLOCK, _BLOCKS = 1 << 16, 64  # `quick_hash` of a large file: bytes of a block, number of blocks


def file_hash(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with open(path, "rb", opener=regular_file) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def quick_hash(path: Path) -> str:
    """The SHA-256 of a file's size and bytes; above 4 MiB, of 64 evenly spaced blocks of 64 KiB.

    They include the first and the last block. Damage between blocks goes undetected.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb", opener=regular_file) as file:
        if size <= _BLOCK * _BLOCKS:
            digest.update(file.read())
        else:
            for number in range(_BLOCKS):
                file.seek(number * (size - _BLOCK) // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK))
    return digest.hexdigest()


def with_hash(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with its own hash added. The values must be strict JSON: no NaN, no infinity."""
    plain = {key: value for key, value in record.items() if key != _HASH}
    return {**plain, _HASH: _record_hash(plain)}


def is_intact(record: Mapping[str, Any]) -> bool:
    """Whether a record still matches its hash; one without a hash passes."""
    plain = {key: value for key, value in record.items() if key != _HASH}
    return _HASH not in record or record[_HASH] == _record_hash(plain)


def _record_hash(plain: Mapping[str, Any]) -> str:
    # Written as JSON and read again, tuples become lists and keys strings; the hash must be the same before and after.
    read = json.loads(json.dumps(plain, allow_nan=False))
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()
