"""The key/value store of FusedStep: the keys and values of all sequences, and which of them each hypothesis sees.

Each sentence has one sequence in the store, with slots for the keys and values of cross-attention (`memory`) and of
self-attention (`past`). Neither is moved once written. A hypothesis is a list of slots, in the order of its tokens:

    slots of a sequence    a b  c d  e f      two hypotheses, three steps
    the first              0 2 4              a c e
    the second             0 3 5              a d f: it forked from the first after a

So when a hypothesis forks or a sentence leaves, only index arrays change.

Buffers come from a BufferPool, as leases. A store owns its leases, and gives them back when it is released, joined to
another store, or needs larger ones. If an exception ends a search, its leases do not return to the pool; Python frees
their buffers. The pool holds idle buffers only, so it can't hand out one that is in use.

Letters: S sentences, w hypotheses of each, B = S·w rows, L new tokens, R those that are not padding, M slots,
n source length, H heads, K head width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from sixfold.core.growing_tensor import GROWTH, SPARE, TOO_LARGE

_MOST_IDLE = 1 << 29  # most idle bytes that a pool keeps when it allocates more
_SMALLEST = 1 << 20  # bytes: smaller buffers are not kept, because the allocator reuses them itself
_GIVEN_BACK = np.empty(0, np.uint8)  # the `array` of a lease that has ended


class Lease:
    """A buffer in use: `array` belongs to the owner of the lease until it is given back to the pool."""

    def __init__(self, buffer: np.ndarray, shape: Sequence[int], dtype: Any):
        self.array = buffer[: _size_of(shape, dtype)].view(dtype).reshape(shape)
        self._buffer: np.ndarray | None = buffer

    def end(self) -> np.ndarray:
        """End the lease. → the buffer, which its former owner must no longer use"""
        buffer, self._buffer, self.array = self._buffer, None, _GIVEN_BACK
        assert buffer is not None, "a lease that has ended was given back again"
        return buffer


class BufferPool:
    """Idle buffers, for reuse: getting new memory from the system takes longer than filling it. Not thread-safe."""

    def __init__(self) -> None:
        self._idle: list[np.ndarray] = []  # the most recently returned one is last

    def lease(self, shape: Sequence[int], dtype: Any) -> Lease:
        """An array with arbitrary contents: the smallest idle buffer that fits, or new memory."""
        size = _size_of(shape, dtype)
        fits = [index for index, each in enumerate(self._idle) if size <= len(each) <= TOO_LARGE * size]
        if fits:
            return Lease(self._idle.pop(min(fits, key=lambda index: len(self._idle[index]))), shape, dtype)
        if size >= _SMALLEST:
            self._drop_oldest()
        return Lease(np.empty(size, np.uint8), shape, dtype)

    def give_back(self, lease: Lease) -> None:
        buffer = lease.end()
        if len(buffer) >= _SMALLEST:
            self._idle.append(buffer)

    def _drop_oldest(self) -> None:
        """Free the buffers that have been idle longest until at most `_MOST_IDLE` bytes are idle."""
        while sum(map(len, self._idle)) > _MOST_IDLE:
            del self._idle[0]


def _size_of(shape: Sequence[int], dtype: Any) -> int:
    """In bytes."""
    return math.prod(shape) * np.dtype(dtype).itemsize


class LayerKV(NamedTuple):
    """The keys and values of one layer."""

    states: Lease  # (sequences, slots, 2, H, K): float32; or int8, with a scale
    scale: Lease | None  # (sequences, slots, 2, H): value = scale · state

    @classmethod
    def make(cls, pool: BufferPool, sequences: int, slots: int, shape: tuple[int, int], int8: bool) -> LayerKV:
        """For heads of shape (H, K). The contents are arbitrary."""
        size, (heads, _) = (sequences, slots, 2, *shape), shape
        if not int8:
            return cls(pool.lease(size, np.float32), None)
        return cls(pool.lease(size, np.int8), pool.lease((sequences, slots, 2, heads), np.float32))

    @property
    def arrays(self) -> Arrays:
        return self.states.array, None if self.scale is None else self.scale.array


Arrays = tuple[np.ndarray, np.ndarray | None]  # states and their scale, for the kernels


class View(NamedTuple):
    """The keys and values that the rows of a pass attend to."""

    sequence: np.ndarray  # (R,)
    order: np.ndarray  # (lines, ≥ M): slots
    order_row: np.ndarray  # (R,): the row's line in `order`
    visible: np.ndarray  # (R,): the row sees this many slots, the first of its line


class NewTokens(NamedTuple):
    """Index arrays for the new tokens of a pass, without padding."""

    position: np.ndarray  # (R,)
    slot: np.ndarray  # (R,): the slot to which keys and values are written
    past: View
    memory: View


class _Rows(NamedTuple):
    """Index arrays for the rows of a pass that stay the same from step to step."""

    hypothesis: np.ndarray  # (R,)
    sentence: np.ndarray  # (R,)
    number: np.ndarray  # (R,): index of the hypothesis in its sentence, 0 to w − 1
    memory: View


@dataclass
class KVStore:
    """The state of a step. `select` and `join` change it in place and return it."""

    memory: list[LayerKV]  # of each layer
    past: list[LayerKV]  # of each layer
    sequence: np.ndarray  # (S,): index of each sentence in the states of every layer
    length: np.ndarray  # (S,): n
    used: np.ndarray  # (S,): slots of the past in use
    count: np.ndarray  # (B,): tokens of each hypothesis
    order: np.ndarray  # (B, ≥ M): their slots
    pool: BufferPool
    _one_each: _Rows | None = field(default=None, init=False)  # for steps of one token per hypothesis

    light: ClassVar[bool] = True

    @classmethod
    def empty(cls, memory: list[LayerKV], past: list[LayerKV], length: np.ndarray, pool: BufferPool) -> KVStore:
        """One hypothesis without tokens for each sentence."""
        zeros, order = np.zeros(len(length), np.int64), np.empty((len(length), 0), np.int64)
        return cls(memory, past, np.arange(len(length)), length, zeros, zeros.copy(), order, pool)

    @property
    def width(self) -> int:
        return len(self.count) // len(self.sequence)

    def release(self) -> None:
        """Give all buffers back. The store must not be used afterwards."""
        for lease in _leases(self.memory, self.past):
            self.pool.give_back(lease)
        self.memory, self.past = [], []

    def add(self, real: np.ndarray) -> NewTokens:
        """Reserve slots for the new tokens (B, L) that are `real`."""
        if real.shape[1] == 1 and real.all():  # nearly all steps
            self._one_each = self._one_each or self._rows(np.arange(len(self.count)))
            return self._add(self._one_each, self.count, self.used[self._one_each.sentence], 1, self.width)
        hypothesis, column = real.nonzero()
        number, most = real.cumsum(1)[hypothesis, column] - 1, real.sum(1)
        rows = self._rows(hypothesis)
        position, slot = self.count[hypothesis] + number, self.used[rows.sentence] + number * self.width
        return self._add(rows, position, slot, most, most.reshape(-1, self.width).max(1) * self.width)

    def _add(self, rows: _Rows, position: np.ndarray, slot: np.ndarray, tokens: Any, slots: Any) -> NewTokens:
        """Count new `tokens` of each hypothesis (B,), and new `slots` of each sentence (S,)."""
        slot = slot + rows.number
        self.used, self.count = self.used + slots, self.count + tokens
        self._reach(int(self.used.max()), int(self.count.max()))
        self.order[rows.hypothesis, position] = slot
        past = View(rows.memory.sequence, self.order, rows.hypothesis, position + 1)
        return NewTokens(position, slot, past, rows.memory)

    def _rows(self, hypothesis: np.ndarray) -> _Rows:
        sentence = hypothesis // self.width
        order = np.arange(_shape(self.memory)[1] if self.memory else 0)[None]
        memory = View(self.sequence[sentence], order, np.zeros_like(hypothesis), self.length[sentence])
        return _Rows(hypothesis, sentence, hypothesis % self.width, memory)

    def _reach(self, slots: int, tokens: int) -> None:
        """Grow to at least this many slots per sequence, and this many tokens per hypothesis."""
        sequences, had_slots = _shape(self.past)
        if slots > had_slots:
            more = max(2 * slots, self._expected_slots())
            self.past = self._moved(self.past, slice(None), sequences, more)
        if tokens > self.order.shape[1]:
            self.order = _longer(self.order, tokens + SPARE)

    def _expected_slots(self) -> int:
        """An estimate: outputs are about as long as their sources."""
        return _with_spare(self.width * int(self.length.max(initial=0)))

    def select(self, rows: Tensor) -> KVStore:
        """Keep these hypotheses, (S, w), or (S,) for w = 1. Those in one line must belong to one sentence."""
        lines = rows.numpy().reshape(len(rows), -1)
        sentences = lines[:, 0] // self.width
        if (lines // self.width != sentences[:, None]).any():
            raise ValueError("select: hypotheses of different sentences in one line")
        same = lines.shape == (len(self.sequence), self.width) and (sentences == np.arange(len(lines))).all()
        flat = lines.reshape(-1)
        self.count, self.order = self.count[flat], self.order[flat]
        if same:  # most steps of a beam
            return self
        self.sequence, self.length, self.used = (each[sentences] for each in (self.sequence, self.length, self.used))
        self._one_each = None
        if (np.diff(sentences) <= 0).any() and len(np.unique(sentences)) < len(lines):
            self._move(np.arange(len(lines)), len(lines))  # a sentence that occurs twice needs two sequences
        return self

    def join(self, other: KVStore, free: Sequence[int] = ()) -> KVStore:
        """Add the sentences of `other`, first at the indices `free` of this store, then after the last one. Releases
        `other`."""
        if self.width != other.width:
            raise ValueError(f"join: {self.width} hypotheses per sentence here, {other.width} there")
        width, here, there = self.width, len(self.sequence), len(other.sequence)
        free = list(free)[:there]
        at = np.array([*free, *range(here, here + there - len(free))])
        sequences = self._free_sequences(np.setdiff1d(np.arange(here), at), other)
        _copy(self.memory, other.memory, sequences, other.sequence)
        _copy(self.past, other.past, sequences, other.sequence)
        rows = (at[:, None] * width + np.arange(width)).reshape(-1)
        slots = max(self.order.shape[1], other.order.shape[1])
        self.sequence = _placed(self.sequence, sequences, at)
        self.length = _placed(self.length, other.length, at)
        self.used = _placed(self.used, other.used, at)
        self.count = _placed(self.count, other.count, rows)
        self.order = _placed(_longer(self.order, slots), _longer(other.order, slots), rows)
        self._one_each = None
        other.release()
        return self

    def _free_sequences(self, stay: np.ndarray, other: KVStore) -> np.ndarray:
        """Sequences for the sentences of `other`, unused by the sentences that stay. Reallocates if needed."""
        total = len(stay) + len(other.sequence)
        longest, slots = _most(self.length[stay], other.length), _most(self.used[stay], other.used)
        needed = [(_shape(layers), most) for layers, most in ((self.memory, longest), (self.past, slots)) if layers]
        if any(_unfit(*shape, total, most) for shape, most in needed):
            self._move(stay, int(GROWTH * total), _with_spare(longest), _with_spare(max(slots, self.width * longest)))
        taken = set(self.sequence[stay].tolist())
        return np.array([each for each in range(_shape(self.past)[0]) if each not in taken][: len(other.sequence)])

    def _move(self, stay: np.ndarray, sequences: int, longest: int | None = None, slots: int | None = None) -> None:
        """Reallocate with this many sequences. The sentences that `stay` get the first ones."""
        kept = self.sequence[stay]
        self.memory = self._moved(self.memory, kept, sequences, longest)
        self.past = self._moved(self.past, kept, sequences, slots)
        self.sequence[stay] = np.arange(len(stay))

    def _moved(self, layers: list[LayerKV], kept: Any, sequences: int, slots: int | None) -> list[LayerKV]:
        """New buffers with the sequences `kept`; slots = None keeps the number of slots."""

        def moved(old: Lease) -> Lease:
            had_slots = old.array.shape[1]
            number = had_slots if slots is None else slots
            new = self.pool.lease((sequences, number, *old.array.shape[2:]), old.array.dtype)
            states = old.array[kept, : min(number, had_slots)]
            new.array[: len(states), : states.shape[1]] = states
            self.pool.give_back(old)
            return new

        return [LayerKV(moved(states), None if scale is None else moved(scale)) for states, scale in layers]


def _leases(*layers: list[LayerKV]) -> list[Lease]:
    return [lease for lease in chain.from_iterable(chain.from_iterable(layers)) if lease is not None]


def _shape(layers: list[LayerKV]) -> tuple[int, int]:
    """The numbers of sequences and slots."""
    return layers[0].states.array.shape[:2]


def _most(*numbers: np.ndarray) -> int:
    return max(int(each.max(initial=0)) for each in numbers)


def _with_spare(slots: int) -> int:
    """With spare slots: the next sentences are often a little longer."""
    return max(slots + SPARE, int(GROWTH * slots))


def _unfit(had_sequences: int, had_slots: int, sequences: int, slots: int) -> bool:
    """Whether buffers are too small, or far too large: memory taken for one long text must be freed again."""
    too_large = had_sequences * had_slots > TOO_LARGE * (sequences + SPARE) * (slots + SPARE)
    return too_large or had_sequences < sequences or had_slots < slots


def _longer(array: np.ndarray, slots: int) -> np.ndarray:
    """The array with at least this many columns. The contents of new ones are arbitrary."""
    if slots <= array.shape[1]:
        return array
    made = np.empty((len(array), slots), array.dtype)
    made[:, : array.shape[1]] = array
    return made


def _copy(ours: list[LayerKV], theirs: list[LayerKV], to: np.ndarray, origin: np.ndarray) -> None:
    """Copy the sequences `origin` of `theirs` to the sequences `to` of `ours`."""
    for our, their in zip(_leases(ours), _leases(theirs), strict=True):
        slots = min(our.array.shape[1], their.array.shape[1])
        our.array[to, :slots] = their.array[origin, :slots]


def _placed(ours: np.ndarray, theirs: np.ndarray, at: np.ndarray) -> np.ndarray:
    """`ours` with the rows of `theirs` at these indices, grown if an index lies beyond the end."""
    made = np.empty((max(len(ours), int(at.max()) + 1), *ours.shape[1:]), ours.dtype)
    made[: len(ours)] = ours
    made[at] = theirs
    return made
