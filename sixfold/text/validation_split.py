"""Holds out validation text from the training text, where no validation text is given.

    pairs               those of some sources. A hash of the source chooses them, so that all pairs of a source are on
                        one side, in whatever order the files have them
    texts with labels   the same for each label; a text that occurs with several labels stays in training
    plain text          the end of each file: after a document if possible, else after a line

The first pass over the files counts and chooses; the second keeps what is held out in memory while it writes the rest.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from sixfold.config.schema import Data
from sixfold.text.arrays import Array
from sixfold.text.lines import Opener
from sixfold.text.sources import Source, Split, Stretch

_SHARE = 0.05
_MOST_ROWS, _MOST_CHARACTERS = 1000, 500_000  # of "auto": more would make validations slow
_FEW_ROWS = 10  # of "auto", where 5 % are fewer, but never more than a quarter
_SMALLEST_ROWS, _SMALLEST_TEXT = 20, 1000  # rows, or characters: a smaller text is not divided by "auto"

T = TypeVar("T", bound=tuple[Any, ...])


def wants_split(data: Data) -> bool:
    """Whether validation text is to be held out."""
    return data.train is not None and data.valid is None and data.held_out != 0


def rows_to_hold_out(data: Data, rows: int) -> int:
    """The number of pairs, or of texts with labels, by data.held_out."""
    if data.held_out == "auto":
        if rows < _SMALLEST_ROWS:
            return 0
        return min(max(round(_SHARE * rows), _FEW_ROWS), rows // 4, _MOST_ROWS)
    return _asked(data.held_out, rows, "rows")


def characters_to_hold_out(data: Data, characters: int) -> int:
    """The number of characters of plain text, by data.held_out."""
    if data.held_out == "auto":
        return 0 if characters < _SMALLEST_TEXT else min(round(_SHARE * characters), _MOST_CHARACTERS)
    return _asked(data.held_out, characters, "characters")


def _asked(held_out: int | float, there: int, what: str) -> int:
    """A share, or a number, of which at least half must remain."""
    number = round(held_out * there) if isinstance(held_out, float) else held_out
    if number > there // 2:
        raise ValueError(
            f"data.held_out is {held_out}, but data.train has {there:,} {what}: at most half of them can be held out"
        )
    return number


def described(held: int, there: int, noun: str, how: str) -> str:
    """A sentence for the user: what is held out, or that nothing is."""
    if held:
        return f"note: no validation text is given: {held:,} of {there:,} {noun} are held out, {how}"
    small = "the training text is too small, or too uniform, to hold some out"
    return f"warning: no validation text is given, and {small}: the run trains without validation"


# Pairs, and texts with labels ----------------------------------------------------------------------------------------


def key_of(seed: int) -> Callable[[str], int]:
    """A function from a text to 64 bits that look random, the same in every process."""
    key = seed.to_bytes(8, "big")

    def hashed(text: str) -> int:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=key).digest(), "big", signed=True)

    return hashed


def choose(keys: Array, most: int) -> frozenset[int]:
    """The smallest keys that at most this number of rows have. A key of more rows is passed over."""
    chosen, rows = set(), 0
    for key, count in zip(*np.unique(keys, return_counts=True), strict=True):
        if rows == most:
            break
        if rows + count <= most:
            chosen.add(int(key))
            rows += int(count)
    return frozenset(chosen)


def choose_by_label(keys: Array, labels: Array, most: int) -> frozenset[int]:
    """The same, where each label gets its share. At least half of the rows of each label remain."""
    if not len(keys):
        return frozenset()
    ends = np.cumsum(np.unique(labels, return_counts=True)[1])
    shares = np.diff(np.round(most * ends / len(keys)), prepend=0)  # which add up to `most`
    of_label = np.split(keys[np.argsort(labels, kind="stable")], ends[:-1])
    chosen = [choose(rows, min(int(share), len(rows) // 2)) for rows, share in zip(of_label, shares, strict=True)]
    return frozenset[int]().union(*chosen)


class HeldOutRows(Generic[T]):
    """The rows of the training text whose keys were chosen."""

    def __init__(self, chosen: frozenset[int], key: Callable[[T], int]):
        self._chosen, self._key = chosen, key
        self._rows: list[tuple[int, T]] = []

    def sources(self, training: Sequence[Source[T]]) -> dict[Split, list[Source[T]]]:
        """The sources of the training and the validation text. The first must be read before the second."""
        rest = [replace(source, reader=partial(self._rest, source)) for source in training]
        return {"train": rest, "valid": [Source("what is held out of data.train", 1.0, self._read)]}

    def _rest(self, source: Source[T], opener: Opener) -> Iterator[T]:
        for row in source.read(opener):
            key = self._key(row)
            if key in self._chosen:
                self._rows.append((key, row))
            else:
                yield row

    def _read(self, _: object) -> Iterator[T]:
        return (row for _, row in sorted(self._rows))  # whatever the order of the files


# Plain text ----------------------------------------------------------------------------------------------------------


class CutPoints:
    """The places in a file where validation text can begin, in characters from its beginning."""

    def __init__(self) -> None:
        self.length = 0  # without white space at the end
        self._read = 0
        self._lines, self._documents = array("q"), array("q")  # where they end

    def watch(self, stretches: Iterable[Stretch]) -> Iterator[Stretch]:
        """Pass on the stretches of the file."""
        for text, ends in stretches:
            self._read += len(text)
            self.length = self._read if text.strip() else self.length
            (self._documents if ends else self._lines).append(self._read)
            yield text, ends

    def before_last(self, characters: int) -> int:
        """The first place from which at most this number of characters are left."""
        wanted = self.length - characters
        for places in (self._documents, self._lines):
            index = bisect_left(places, wanted)
            if index < len(places) and places[index] < self.length:
                return places[index]
        return wanted  # in the last line

    def lines_after(self, place: int) -> int:
        """The number of lines that end after a place."""
        return len(self._lines) - bisect_right(self._lines, place)


class HeldOutEnds:
    """The ends of the files of a training text."""

    def __init__(self, cuts: Sequence[int]):
        self._cuts = cuts  # where the end of each file begins
        self._ends: list[Stretch] = []

    def sources(self, training: Sequence[Source[Stretch]]) -> dict[Split, list[Source[Stretch]]]:
        """The sources of the training and the validation text. The first must be read before the second."""
        pairs = zip(training, self._cuts, strict=True)
        rest = [replace(source, reader=partial(self._rest, source, cut)) for source, cut in pairs]
        return {"train": rest, "valid": [Source("what is held out of data.train", 1.0, lambda _: iter(self._ends))]}

    def _rest(self, source: Source[Stretch], cut: int, opener: Opener) -> Iterator[Stretch]:
        """The text before the cut, as a document that ends there."""
        left, inside, held = cut, False, False
        for text, ends in source.read(opener):
            held = held or len(text) > left
            if not held:
                yield text, ends
                left, inside = left - len(text), not ends
                continue
            if left:
                space = text.find(" ", left, len(text.rstrip()))
                left = left if space < 0 else space
                yield text[:left], False
                text, left, inside = text[left:], 0, True
            if inside:
                yield "", True
                inside = False
            self._ends.append((text, ends))
