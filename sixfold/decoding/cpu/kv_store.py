"""Where keys and values lie, and which of them each hypothesis sees: what a FusedStep remembers.

Each sentence has a home, with room for what cross-attention looks at, and for what its hypotheses have said. Both
stay where they were written. A hypothesis is the order of the slots of its past:

    slots of a home    a b  c d  e f      two hypotheses, three steps
    the first          0 2 4              a c e
    the second         0 3 5              a d f: it is of the first one's past, and went on by itself

So one that forks, and a sentence that leaves, move nothing but numbers.

Letters: S sentences, w hypotheses of each, B = S·w rows, L new tokens, R those that are no padding, M slots,
n source length, H heads, K head width.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from sixfold.core.growing_tensor import MORE, MUCH, SPARE

_KEPT = 1 << 29  # bytes of memory that nobody has, and that are kept all the same
_WORTH_KEEPING = 1 << 20  # bytes; of less there is always some
_FREE = 3  # references to what nobody has: the list, the loop, and the one that is asked about

Room = tuple[np.ndarray, np.ndarray | None]  # (homes, slots, 2, H, K), and its scale (homes, slots, 2, H) if it has one


class Attic:
    """Memory that is used again: to get it anew from the system takes longer than to write there. For one thread."""

    def __init__(self) -> None:
        self._papers: list[np.ndarray] = []  # the latest last

    def take(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """An array, with whatever is there, of memory that no array has any more."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        paper = min((each for each in self._free() if size <= len(each) <= MUCH * size), key=len, default=None)
        if paper is None:
            paper = np.empty(size, np.uint8)
            if size >= _WORTH_KEEPING:
                self._keep(paper)
        return paper[:size].view(dtype).reshape(shape)

    def _free(self) -> list[np.ndarray]:
        return [paper for paper in self._papers if sys.getrefcount(paper) <= _FREE]

    def _keep(self, paper: np.ndarray) -> None:
        """Also when nobody will have it any more; but not too much of what is so already, and no fit."""
        free, left = self._free(), _KEPT
        for each in reversed(free):
            left -= len(each)
            if left < 0:
                self._papers = [other for other in self._papers if other is not each]
        self._papers.append(paper)


def make_room(attic: Attic, homes: int, slots: int, shape: tuple[int, int], whole: bool) -> Room:
    """For keys and values of heads (H, K): as they are, or in whole numbers of 8 bits."""
    size, (heads, _) = (homes, slots, 2, *shape), shape
    if not whole:
        return attic.take(size, np.float32), None
    return attic.take(size, np.int8), attic.take((homes, slots, 2, heads), np.float32)


class View(NamedTuple):
    """What the rows of a pass look at."""

    home: np.ndarray  # (R,)
    order: np.ndarray  # (lines, M or more): slots
    line: np.ndarray  # (R,): whose order
    seen: np.ndarray  # (R,): how many of its slots


class News(NamedTuple):
    """The new tokens of a pass, without padding."""

    position: np.ndarray  # (R,)
    slot: np.ndarray  # (R,): where keys and values are laid
    past: View
    memory: View


class _Rows(NamedTuple):
    """What does not change from step to step of the rows of a pass."""

    row: np.ndarray  # (R,): which hypothesis
    sentence: np.ndarray  # (R,)
    beside: np.ndarray  # (R,): which of its sentence's
    memory: View


@dataclass
class Shelf:
    """The state of a step. It is used up by `select` and `join`: what they return goes on with what it held."""

    memory: list[Room]  # of each layer; nothing in a decoder alone
    past: list[Room]  # of each layer
    home: np.ndarray  # (S,)
    length: np.ndarray  # (S,): n
    used: np.ndarray  # (S,): slots of the past that are taken
    count: np.ndarray  # (B,): tokens of each hypothesis
    order: np.ndarray  # (B, M or more): their slots
    attic: Attic  # where rooms come from

    light: ClassVar[bool] = True

    @classmethod
    def empty(cls, memory: list[Room], past: list[Room], length: np.ndarray, attic: Attic) -> Shelf:
        """Of sentences that have said nothing yet."""
        zeros, order = np.zeros(len(length), np.int64), np.empty((len(length), 0), np.int64)
        return cls(memory, past, np.arange(len(length)), length, zeros, zeros.copy(), order, attic)

    @property
    def width(self) -> int:
        return len(self.count) // len(self.home)

    def add(self, real: np.ndarray) -> News:
        """Make room for new tokens (B, L), wherever `real`."""
        if real.shape[1] == 1 and real.all():  # as in nearly all steps
            return self._add(self._one_each, self.count, self.used[self._one_each.sentence], 1, self.width)
        row, column = real.nonzero()
        number, most = real.cumsum(1)[row, column] - 1, real.sum(1)
        rows = self._rows(row)
        slot = self.used[rows.sentence] + number * self.width
        return self._add(rows, self.count[row] + number, slot, most, most.reshape(-1, self.width).max(1) * self.width)

    def _add(self, rows: _Rows, position: np.ndarray, slot: np.ndarray, most: Any, taken: Any) -> News:
        """`most` (B,) tokens are new of each hypothesis, and `taken` (S,) slots are for them."""
        slot = slot + rows.beside
        self.used, self.count = self.used + taken, self.count + most
        self._reach(int(self.used.max()), int(self.count.max()))
        self.order[rows.row, position] = slot
        return News(position, slot, View(rows.memory.home, self.order, rows.row, position + 1), rows.memory)

    @cached_property
    def _one_each(self) -> _Rows:
        return self._rows(np.arange(len(self.count)))

    def _rows(self, row: np.ndarray) -> _Rows:
        sentence = row // self.width
        order = np.arange(_size(self.memory)[1] if self.memory else 0)[None]
        memory = View(self.home[sentence], order, np.zeros_like(row), self.length[sentence])
        return _Rows(row, sentence, row % self.width, memory)

    def _reach(self, slots: int, tokens: int) -> None:
        if slots > _size(self.past)[1]:
            more = max(2 * slots, self._expected())
            self.past = _each(self.past, lambda array: _longer(array, more, self.attic.take))
        if tokens > self.order.shape[1]:
            self.order = _longer(self.order, tokens + SPARE)

    def _expected(self) -> int:
        """Slots for outputs that are about as long as their sources."""
        return _ahead(self.width * int(self.length.max(initial=0)))

    def select(self, rows: Tensor) -> Shelf:
        """These hypotheses, (S, w), or (S,) for w = 1: those of a line belong to one sentence."""
        lines = rows.numpy().reshape(len(rows), -1)
        sentences = lines[:, 0] // self.width
        if (lines // self.width != sentences[:, None]).any():
            raise ValueError("select: hypotheses of different sentences in one line")
        flat = lines.reshape(-1)
        if lines.shape == (len(self.home), self.width) and (sentences == np.arange(len(lines))).all():
            self.count, self.order = self.count[flat], self.order[flat]  # all stay: as in most steps of a beam
            return self
        numbers = self.home[sentences], self.length[sentences], self.used[sentences], self.count[flat], self.order[flat]
        chosen = Shelf(self.memory, self.past, *numbers, self.attic)
        if (np.diff(sentences) <= 0).any() and len(np.unique(sentences)) < len(
            lines
        ):  # one that occurs twice needs two homes
            chosen._move(np.arange(len(lines)), len(lines))
        return chosen

    def join(self, other: Shelf, free: Sequence[int] = ()) -> Shelf:
        """The sentences of both: the other's take these places of this one's, and further ones after all."""
        if self.width != other.width:
            raise ValueError(f"join: {self.width} hypotheses per sentence here, {other.width} there")
        width, here, there = self.width, len(self.home), len(other.home)
        free = list(free)[:there]
        places = np.array([*free, *range(here, here + there - len(free))])
        homes = self._homes(np.setdiff1d(np.arange(here), places), other)
        _put(self.memory, other.memory, homes, other.home)
        _put(self.past, other.past, homes, other.home)
        rows = (places[:, None] * width + np.arange(width)).reshape(-1)
        slots = max(self.order.shape[1], other.order.shape[1])
        return Shelf(
            self.memory,
            self.past,
            _placed(self.home, homes, places),
            _placed(self.length, other.length, places),
            _placed(self.used, other.used, places),
            _placed(self.count, other.count, rows),
            _placed(_longer(self.order, slots), _longer(other.order, slots), rows),
            self.attic,
        )

    def _homes(self, stay: np.ndarray, other: Shelf) -> np.ndarray:
        """Homes for those who come, where nobody is who stays, and with room for them."""
        total = len(stay) + len(other.home)
        longest, slots = (_most(ours[stay], theirs) for ours, theirs in _both(self, other))
        needed = [(_size(rooms), most) for rooms, most in ((self.memory, longest), (self.past, slots)) if rooms]
        if any(_unfit(*size, total, most) for size, most in needed):
            self._move(stay, int(MORE * total), _ahead(longest), _ahead(max(slots, self.width * longest)))
        taken = set(self.home[stay].tolist())
        return np.array([home for home in range(_size(self.past)[0]) if home not in taken][: len(other.home)])

    def _move(self, sentences: np.ndarray, homes: int, longest: int | None = None, slots: int | None = None) -> None:
        """Into other rooms, which have so many homes, of which these sentences have the first."""
        kept = self.home[sentences]
        self.memory = _each(self.memory, lambda array: _relaid(array, kept, homes, longest, self.attic))
        self.past = _each(self.past, lambda array: _relaid(array, kept, homes, slots, self.attic))
        self.home[sentences] = np.arange(len(sentences))


def _size(rooms: list[Room]) -> tuple[int, int]:
    """Homes and slots."""
    return rooms[0][0].shape[:2]


def _each(rooms: list[Room], change: Callable[[np.ndarray], np.ndarray]) -> list[Room]:
    return [(change(states), None if scale is None else change(scale)) for states, scale in rooms]


def _both(ours: Shelf, theirs: Shelf) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    return (ours.length, theirs.length), (ours.used, theirs.used)


def _most(*numbers: np.ndarray) -> int:
    return max(int(each.max(initial=0)) for each in numbers)


def _ahead(slots: int) -> int:
    """With some to spare: who comes next is often a little longer."""
    return max(slots + SPARE, int(MORE * slots))


def _unfit(had_homes: int, had_slots: int, homes: int, slots: int) -> bool:
    """Whether rooms are too small, or far too large: what one long text needed is not kept for all."""
    too_large = had_homes * had_slots > MUCH * (homes + SPARE) * (slots + SPARE)
    return too_large or had_homes < homes or had_slots < slots


def _relaid(room: np.ndarray, kept: np.ndarray, homes: int, slots: int | None, attic: Attic) -> np.ndarray:
    slots = room.shape[1] if slots is None else slots
    made, same = attic.take((homes, slots, *room.shape[2:]), room.dtype), min(slots, room.shape[1])
    made[: len(kept), :same] = room[kept, :same]
    return made


def _longer(array: np.ndarray, slots: int, make: Callable[..., np.ndarray] = np.empty) -> np.ndarray:
    """With so many slots or more; what is in the new ones is not looked at."""
    if slots <= array.shape[1]:
        return array
    made = make((len(array), slots, *array.shape[2:]), array.dtype)
    made[:, : array.shape[1]] = array
    return made


def _put(ours: list[Room], theirs: list[Room], homes: np.ndarray, from_homes: np.ndarray) -> None:
    for room, other in zip(chain.from_iterable(ours), chain.from_iterable(theirs), strict=True):
        if room is not None and other is not None:
            slots = min(room.shape[1], other.shape[1])
            room[homes, :slots] = other[from_homes, :slots]


def _placed(ours: np.ndarray, theirs: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Theirs in these places of ours, of which there may be more then."""
    made = np.empty((max(len(ours), int(places.max()) + 1), *ours.shape[1:]), ours.dtype)
    made[: len(ours)] = ours
    made[places] = theirs
    return made
