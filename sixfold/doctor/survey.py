"""The first pass over one split of a text: numbers and hashes of each row, from which suspicious rows are found.

A row needs 30 bytes, whatever its length: two 64-bit hashes, two lengths, two scripts, and its flags.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import numpy as np

from sixfold.config.schema import Data
from sixfold.doctor.items import Item
from sixfold.doctor.suspicions import (
    FLAGS,
    KINDS,
    LEAST_LINE,
    LONG,
    SLACK,
    USUAL_SCRIPT,
    flags_of,
    is_copy,
    script_of,
)
from sixfold.text.arrays import Array
from sixfold.text.forms import TextForm
from sixfold.text.report import outliers


class Survey:
    """What is known of the rows of one split."""

    def __init__(self, form: TextForm, data: Data):
        self.form = form
        self._longest = LONG * data.max_length if form.has_pairs or form.has_labels else None
        self._flags = array("H")
        self._whole, self._first = array("q"), array("q")  # hashes of a row, and of its source
        self._lengths = [array("i") for _ in range(2 if form.has_pairs else 1)]  # in characters
        self._scripts = [array("B") for _ in self._lengths]
        self._names = [""]  # of scripts, by their numbers
        self.bytes = 0  # of all texts

    @property
    def rows(self) -> int:
        return len(self._flags)

    def watched(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items, each of which is noted."""
        for item in items:
            self._add(item)
            yield item

    def _add(self, item: Item) -> None:
        texts, flags = item.texts, flags_of(item.texts)
        if self._longest is not None:
            flags |= FLAGS["empty"] * (not all(text.strip() for text in texts))
            flags |= FLAGS["long"] * any(len(text) > self._longest for text in texts)
        if self.form.has_pairs and is_copy(texts):
            flags |= FLAGS["copied"]
        self._flags.append(flags)
        self._whole.append(hash((texts, item.label)))
        self._first.append(hash(texts[0]))
        for text, lengths, scripts in zip(texts, self._lengths, self._scripts, strict=True):
            lengths.append(len(text))
            scripts.append(self._number(script_of(text)))
            self.bytes += len(text) if text.isascii() else len(text.encode())

    def _number(self, script: str) -> int:
        if script not in self._names:
            if len(self._names) > 255:
                return 0
            self._names.append(script)
        return self._names.index(script)

    def flags(self) -> Array:
        """The flags of all rows, but for those that compare splits."""
        flags = _array(self._flags, np.uint16).copy()
        for scripts in self._scripts:
            flags[_unusual(_array(scripts, np.uint8))] |= FLAGS["script"]
        if self.form.has_pairs:
            source, target = (_array(lengths, np.int32) for lengths in self._lengths)
            flags[outliers(source, target, SLACK) & self._filled] |= FLAGS["length"]
        if self.form.has_labels:
            flags[self._contradictory() & self._filled] |= FLAGS["labels"]
        flags[_repeated(_array(self._whole, np.int64)) & self._long_enough] |= FLAGS["duplicate"]
        return flags

    def also_in(self, others: Iterable[Survey]) -> Array:
        """Which rows have a source that is also in one of the other splits."""
        sources = [_array(other._first, np.int64)[other._long_enough] for other in others]
        found = np.isin(_array(self._first, np.int64), np.concatenate([np.zeros(0, np.int64), *sources]))
        return found & self._long_enough

    @property
    def _filled(self) -> Array:
        return (_array(self._flags, np.uint16) & FLAGS["empty"]) == 0

    @property
    def _long_enough(self) -> Array:
        """The rows that are compared: all with text, and of plain text the longer lines."""
        if self._longest is not None:
            return self._filled
        return _array(self._lengths[0], np.int32) >= LEAST_LINE

    def _contradictory(self) -> Array:
        """The texts that occur with more than one label."""
        wholes = _array(self._whole, np.int64)
        _, groups = np.unique(_array(self._first, np.int64), return_inverse=True)
        low, high = np.full(len(wholes), wholes.max(initial=0)), np.full(len(wholes), wholes.min(initial=0))
        np.minimum.at(low, groups, wholes)
        np.maximum.at(high, groups, wholes)
        return low[groups] != high[groups]


def counted(flags: Array) -> dict[str, int]:
    """The number of rows of each kind that occurs."""
    counts = {kind.name: int(((flags & FLAGS[kind.name]) != 0).sum()) for kind in KINDS}
    return {name: count for name, count in counts.items() if count}


def _unusual(scripts: Array) -> Array:
    """The rows in another script than nearly all others; none if no script is so usual."""
    counts = np.bincount(scripts, minlength=2)
    counts[0] = 0  # texts without a script
    usual = int(counts.argmax())
    if counts[usual] < USUAL_SCRIPT * counts.sum():
        return np.zeros(len(scripts), bool)
    return (scripts != 0) & (scripts != usual)


def _repeated(hashes: Array) -> Array:
    """The rows whose hash occurred before."""
    repeated = np.ones(len(hashes), bool)
    repeated[np.unique(hashes, return_index=True)[1]] = False
    return repeated


def _array(values: array[int], kind: type) -> Array:
    return np.frombuffer(values, kind) if values else np.zeros(0, kind)
