"""Tokenised text on disk: the ids of all rows in one file, and the offsets of the rows in another.

    train.target.ids       uint16 (uint32 for more than 65,536 words): the ids of all rows
    train.target.offsets   int64: row i is ids[offsets[i] : offsets[i + 1]]
    train.label.values     int32, if each row also has a number, such as the index of its class

All are memory-mapped, so that text larger than memory can be read. A quick hash detects damage; above 4 MiB it covers
samples of the file only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from sixfold.core.quote import quoted
from sixfold.disk.hashes import quick_hash

Array = np.ndarray[Any, np.dtype[Any]]
_COLUMN = np.dtype(np.int32)  # of the values in a column: one per row


class RowRange(NamedTuple):
    """Consecutive rows with the same weight."""

    rows: int
    weight: float  # how often each row occurs in an epoch


class Ragged:
    """Rows of ids of different lengths."""

    def __init__(self, ids: Array, offsets: Array):
        self.ids, self.offsets = ids, offsets
        self.lengths: Array = np.diff(offsets)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Array:
        if not -len(self) <= row < len(self):
            raise IndexError(f"there are {len(self)} rows, got {row}")
        row %= len(self)
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def gather(self, rows: Array) -> tuple[Array, Array]:
        """The concatenated ids of some rows, and the length of each."""
        lengths = self.lengths[rows]
        ends = np.cumsum(lengths)
        shift = np.repeat(self.offsets[rows] - (ends - lengths), lengths)
        return self.ids[shift + np.arange(len(shift))], lengths


@dataclass(frozen=True)
class Examples:
    """Rows to train or validate on: pairs, or texts and windows of text in `target` alone."""

    source: Ragged | None
    target: Ragged
    groups: tuple[RowRange, ...]
    columns: Mapping[str, Array] = field(default_factory=dict)  # one number per row, such as "label": its class

    def __len__(self) -> int:
        return len(self.target)


def id_type(words: int) -> np.dtype[Any]:
    """The smallest dtype that holds the ids of a vocabulary."""
    return np.dtype(np.uint16 if words <= 1 << 16 else np.uint32)


class RowWriter:
    """Writes the rows of one side to disk as they come."""

    def __init__(self, folder: Path, name: str, words: int):
        self.type = id_type(words)
        self.rows, self.tokens = 0, 0
        self._paths = {"ids": folder / f"{name}.ids", "offsets": folder / f"{name}.offsets"}
        self._ids = open(self._paths["ids"], "wb")  # noqa: SIM115 (closed by __exit__)
        self._offsets = open(self._paths["offsets"], "wb")  # noqa: SIM115
        self._offsets.write(np.zeros(1, np.int64).tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._offsets, self._ids:  # closes both, even if closing one fails
            pass

    def write(self, rows: Sequence[Sequence[int]]) -> None:
        """Append complete rows."""
        ends = self.tokens + np.cumsum([len(row) for row in rows], dtype=np.int64)
        self.stream(rows)
        self._end_rows(ends)

    def stream(self, stretches: Sequence[Sequence[int]]) -> None:
        """Append ids to the stream, which `cut` later divides into rows."""
        ids = np.fromiter(chain.from_iterable(stretches), self.type)
        self._ids.write(ids.tobytes())  # `tofile` hides the errno of a full disk
        self.tokens += len(ids)

    def cut(self, start: int, width: int) -> None:
        """Divide the stream from token `start` on into rows of this width; the last may be shorter."""
        ends = np.arange(start + width, self.tokens + width, width, dtype=np.int64)
        self._end_rows(np.minimum(ends, self.tokens))

    def _end_rows(self, ends: Array) -> None:
        self._offsets.write(ends.tobytes())
        self.rows += len(ends)

    def described(self) -> dict[str, Any]:
        """The description that `open_ragged` needs, once all is written."""
        hashes = {kind: quick_hash(path) for kind, path in self._paths.items()}
        return {"rows": self.rows, "tokens": self.tokens, "type": self.type.name, "hashes": hashes}


class ColumnWriter:
    """Writes one number per row, each at least 0 and less than `below`."""

    def __init__(self, folder: Path, name: str, below: int):
        self.below, self.rows = below, 0
        self._path = folder / f"{name}.values"
        self._file = open(self._path, "wb")  # noqa: SIM115 (closed by __exit__)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, values: Sequence[int]) -> None:
        self._file.write(np.asarray(values, _COLUMN).tobytes())
        self.rows += len(values)

    def described(self) -> dict[str, Any]:
        """The description that `open_column` needs, once all is written."""
        return {"rows": self.rows, "below": self.below, "hash": quick_hash(self._path)}


def open_ragged(folder: Path, name: str, described: dict[str, Any]) -> Ragged:
    """The rows that a `RowWriter` wrote; ValueError if they are damaged."""
    rows, tokens, name_of_type = described["rows"], described["tokens"], described["type"]
    hashes = described.get("hashes", {})  # early descriptions lack them
    if type(rows) is not int or type(tokens) is not int or name_of_type not in ("uint16", "uint32"):
        described_as = f"{quoted(rows)} rows of {quoted(tokens)} ids of type {quoted(name_of_type)}"
        raise ValueError(f"{folder / name} can't have {described_as}; prepare the data again")
    kind = np.dtype(name_of_type)
    ids = _map(folder / f"{name}.ids", kind, tokens, hashes.get("ids"))
    offsets = _map(folder / f"{name}.offsets", np.dtype(np.int64), rows + 1, hashes.get("offsets"))
    ragged = Ragged(ids, offsets)
    if offsets[0] != 0 or offsets[-1] != tokens or ragged.lengths.min(initial=0) < 0:
        raise ValueError(
            f"{folder / name}.offsets is damaged: its rows do not follow each other; prepare the data again"
        )
    return ragged


def open_column(folder: Path, name: str, described: Mapping[str, Any]) -> Array:
    """The numbers that a `ColumnWriter` wrote; ValueError if they are damaged."""
    rows, below = described["rows"], described["below"]
    if type(rows) is not int or type(below) is not int:
        raise ValueError(
            f"{folder / name} can't have {quoted(rows)} numbers below {quoted(below)}; prepare the data again"
        )
    values = _map(folder / f"{name}.values", _COLUMN, rows, described["hash"])
    if rows and not 0 <= int(values.min()) <= int(values.max()) < below:
        raise ValueError(
            f"{folder / name}.values is damaged: it has numbers outside 0 to {below - 1}; prepare it again"
        )
    return values


def open_examples(folder: Path, split: str, arrays: dict[str, Any]) -> Examples:
    """The examples of one split, from the descriptions of its writers."""
    sides = {
        side: open_ragged(folder, f"{split}.{side}", arrays[side]) for side in ("source", "target") if side in arrays
    }
    columns = {name: open_column(folder, f"{split}.{name}", each) for name, each in arrays.get("columns", {}).items()}
    groups = tuple(RowRange(*group) for group in arrays["groups"])
    examples = Examples(sides.get("source"), sides["target"], groups, columns)
    for group in groups:
        if type(group.rows) is not int or type(group.weight) not in (int, float) or not 0 < group.weight <= 1e6:
            raise ValueError(
                f"{folder}: {quoted(group.rows)} rows can't have weight {quoted(group.weight)}; prepare the data again"
            )
    rows = {*map(len, sides.values()), *map(len, columns.values()), sum(group.rows for group in groups)}
    if len(rows) > 1:
        raise ValueError(f"{folder}: the files of {split} differ in rows ({rows}); prepare the data again")
    return examples


def _map(path: Path, kind: np.dtype[Any], count: int, expected: str | None) -> Array:
    size = path.stat().st_size if path.is_file() else None
    if size != count * kind.itemsize:
        found = "is missing" if size is None else f"has {size:,} bytes, expected {count * kind.itemsize:,}"
        raise ValueError(f"{path} {found}: the prepared data are damaged; prepare them again")
    if expected is not None and quick_hash(path) != expected:
        raise ValueError(f"{path} has changed since it was written: the prepared data are damaged; prepare them again")
    if count == 0:
        return np.zeros(0, kind)
    return np.asarray(np.memmap(path, kind, "r", shape=(count,)))  # a plain array over the map is faster to index
