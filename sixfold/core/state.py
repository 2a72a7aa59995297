"""What decoding remembers, so that each step computes only what is new.

Two kinds of rows. A *sentence* is what is being translated: its memory, and the keys and values that
cross-attention made of it, are held once. A *hypothesis* is one way of going on. Each sentence has the
same number w of hypotheses, side by side:

    sentences      0           1           2            S
    hypotheses     0  1  2     3  4  5     6  7  8      S·w = B     (here w = 3)

Three kinds of states. Those that are *kept* are made of a sentence's memory. Those that *grow* belong to
a hypothesis: the state of a token lies in the slot of its position, and a hypothesis that forks is copied:

    row 0, 5 tokens   ■ ■ ■ ■ ■ _ _ _
    row 1, 2 tokens   ■ ■ · · · _ _ _

Those that are *shared* belong to the sentence, and stay where they were written: w slots for each step, of
which a hypothesis sees those of its own past. One that forks takes along what it sees, and nothing is copied:

    slots of a sentence   a b  c d  e f      w = 2
    the first sees        ■ ·  ■ ·  ■ ·      a c e
    the second sees       ■ ·  · ■  · ■      a d f: it is of the first one's past, and went on by itself

Letters: S sentences, w hypotheses of each, B = S·w rows, L new tokens, M slots, n source length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sixfold.core.attention_kernels import fold
from sixfold.core.growing_tensor import SPARE, GrowingTensor, Slots

if TYPE_CHECKING:
    from sixfold.core.memory import Memory

Key = Hashable  # (depth, the part's name within its layer)
States = tuple[Tensor, ...]  # each (rows, …, slots, ·)
GrowingTensors = dict[Key, tuple[GrowingTensor, ...]]


class Cache:
    """The states of a decoder between two calls. A fresh one holds a memory, or just rows.

    It is used up by `select` and `join`: what they return goes on with what it held.
    """

    light = False

    def __init__(self, memory: Memory | None = None, *, rows: int | None = None, device: torch.device | None = None):
        if memory is not None and not isinstance(getattr(memory, "states", None), tuple):
            raise ValueError(f"a cache takes the encoder's memory, or rows=…, got {type(memory).__name__}")
        if memory is not None:
            rows, device = memory.states[0].shape[0], memory.states[0].device
        if rows is None:
            raise ValueError("a cache needs the encoder's memory, or the number of rows")
        self.memory = memory
        self.width = 1  # hypotheses per sentence
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)  # (B,) tokens held
        self._growing: GrowingTensors = {}
        self._shared: GrowingTensors = {}
        self._kept: GrowingTensors = {}
        self._unmade: Tensor | None = None  # (S,): sentences that joined, of which nothing is kept yet
        self._paths: SlotVisibility | None = None  # None: each sentence has one hypothesis, which sees all
        self._own_slots = self._shared_slots = Slots(0)  # of this pass
        self.sight: Tensor | None = None  # of this pass, for what is shared

    @property
    def sentences(self) -> int:
        return len(self.lengths) // self.width

    def begin(self, positions: Tensor, real: Tensor | None, count: int) -> None:
        """A pass over new tokens begins: they stand at `positions` (B or 1, L), of `count` in all."""
        if real is None and len(positions) == 1:  # all rows stand at the same place
            self._own_slots = Slots(count, first=count - positions.shape[1])
        else:
            self._own_slots = Slots.of(positions, real, count)
        self._shared_slots, self.sight = self._own_slots, None
        if self._paths is not None:
            self._shared_slots, self.sight = self._paths.go_on(positions - self.lengths[:, None], real)

    def finish(self, new: int | Tensor) -> None:
        """A pass ends, in which each row got so many tokens."""
        self.lengths = self.lengths + new
        self._unmade = None

    def grow(self, key: Key, new: States) -> States:
        """States of new tokens (B, …, L, ·) → those of all tokens so far (B, …, M, ·)."""
        return self._lay(self._growing, key, new, self._own_slots)

    def share(self, key: Key, new: States) -> tuple[States, Tensor | None]:
        """Heads of new tokens (B, H, L, ·) → those of all hypotheses of a sentence (S, H, M, ·), and what is seen.

        That is (S, 1, w·L, M), for queries that are folded; None: what the call says.
        """
        folded = tuple(fold(states, self.sentences) for states in new)
        return self._lay(self._shared, key, folded, self._shared_slots), self.sight

    def of_own_past(self, key: Key, weights_BHLM: Tensor) -> Tensor:
        """Weights on slots, where they are shared → those on each hypothesis's own tokens, in their order."""
        if self._paths is None or key not in self._shared:
            return weights_BHLM
        seen_BM = self._paths.seen.flatten(0, 1)[:, : weights_BHLM.shape[-1]]
        order = (~seen_BM).long().argsort(dim=-1, stable=True)[:, : int(seen_BM.sum(-1).max())]
        return weights_BHLM.gather(-1, order[:, None, None].expand(*weights_BHLM.shape[:3], -1))

    def _lay(self, rooms: GrowingTensors, key: Key, new: States, slots: Slots) -> States:
        if key not in rooms:
            rooms[key] = tuple(GrowingTensor(states, len(states), slots.count + 1) for states in new)
        for room, states in zip(rooms[key], new, strict=True):
            slots.write(room, states)
        return tuple(room.view(len(new[0]), slots.count) for room in rooms[key])

    def keep(self, key: Key, memory_SnD: Tensor, make: Callable[[Tensor], States]) -> States:
        """States of the sentences (S, …, n, ·), made of the memory, once for each."""
        rows, length = memory_SnD.shape[:2]
        if key not in self._kept:
            self._kept[key] = tuple(map(GrowingTensor.of, make(memory_SnD)))
        elif self._unmade is not None:
            which = self._unmade.nonzero()[:, 0]
            for room, states in zip(self._kept[key], make(memory_SnD.index_select(0, which)), strict=True):
                room.reach(rows, length)
                room.put(which, states)
        return tuple(room.view(rows, length) for room in self._kept[key])

    def select(self, rows: Tensor) -> Cache:
        """The cache that has these hypotheses: rows (S, w), a line per sentence, or (S,) for w = 1.

        The w hypotheses of a line must belong to one sentence. A row may occur often, or never: this
        is how beams begin, fork, and end.
        """
        if not isinstance(rows, Tensor) or rows.dim() not in (1, 2):
            raise ValueError(f"select takes a tensor of rows, (S, w) or (S,), got {rows!r}")
        lines = rows[:, None] if rows.dim() == 1 else rows
        sentences = lines[:, 0] // self.width
        if not torch.equal(lines // self.width, sentences[:, None].expand_as(lines)):
            raise ValueError("select: hypotheses of different sentences in one line")
        flat = lines.reshape(-1)
        chosen = Cache(rows=len(flat), device=self.lengths.device)
        chosen.width, chosen.lengths = lines.shape[1], self.lengths[flat]
        if self._paths is not None or chosen.width > 1:
            paths = self._paths or SlotVisibility.straight(self.lengths)
            chosen._paths = paths.select(sentences, lines % self.width)
        chosen._growing = self._growing
        if not _in_order(flat, len(self.lengths)):
            chosen._growing = _selected(self._growing, flat, _most(chosen.lengths))
        chosen.memory, chosen._shared, chosen._kept, chosen._unmade = (
            self.memory,
            self._shared,
            self._kept,
            self._unmade,
        )
        if not _in_order(sentences, self.sentences):
            chosen._take_along(sentences)
        return chosen

    def _take_along(self, sentences: Tensor) -> None:
        """Of what belongs to sentences, what belongs to these."""
        self.memory = _memory_of(self.memory, sentences)
        self._shared = _selected(self._shared, sentences, self._slots_in_use())
        self._kept = _selected(self._kept, sentences, self._memory_length)
        self._unmade = None if self._unmade is None else self._unmade[sentences]

    def join(self, other: Cache, free: Sequence[int] = ()) -> Cache:
        """Both caches' sentences, each at its own length: the other's take these places, and further ones after all."""
        if self.width != other.width:
            raise ValueError(f"join: {self.width} hypotheses per sentence here, {other.width} there")
        if (self.memory is None) != (other.memory is None):
            raise ValueError("join: one cache has an encoder's memory, the other has none")
        here, there = self.sentences, other.sentences
        free = list(free)[:there]
        places = torch.tensor([*free, *range(here, here + there - len(free))], device=self.lengths.device)
        rows = (places[:, None] * self.width + torch.arange(self.width, device=places.device)).flatten()
        total = here + there - len(free)
        in_use = self._slots_in_use(), other._slots_in_use()
        if self._paths is not None or other._paths is not None:
            ours, theirs = (each._paths or SlotVisibility.straight(each.lengths) for each in (self, other))
            self._paths = ours.join(theirs, places, total)
        _put(self._growing, other._growing, rows, total * self.width, (_most(self.lengths), _most(other.lengths)))
        _put(self._shared, other._shared, places, total, in_use)
        self.lengths = _placed(self.lengths, other.lengths, rows, total * self.width)
        self.memory = _join_memories(self.memory, other.memory, places, total)
        for room in chain.from_iterable(self._kept.values()):
            room.reach(total, self._memory_length)
        unmade = torch.zeros(here, dtype=torch.bool, device=places.device) if self._unmade is None else self._unmade
        self._unmade = _placed(unmade, torch.ones_like(places, dtype=torch.bool), places, total)
        return self

    def release(self) -> None:
        """Nothing to give back: Python frees the tensors."""

    @property
    def _memory_length(self) -> int:
        return 0 if self.memory is None else self.memory.states[0].shape[1]

    def _slots_in_use(self) -> int:
        """Of those that are shared."""
        return _most(self.lengths if self._paths is None else self._paths.used)

    def __repr__(self) -> str:
        return f"Cache({self.sentences} sentences × {self.width} hypotheses, lengths {self.lengths.tolist()})"


class SlotVisibility:
    """Which of a sentence's slots each of its hypotheses sees."""

    def __init__(self, used: Tensor, seen: Tensor):
        self.used = used  # (S,): slots in use
        self.seen = seen  # (S, w, M or more)

    @classmethod
    def straight(cls, lengths: Tensor) -> SlotVisibility:
        """One hypothesis each, that sees all its tokens."""
        slots = torch.arange(_most(lengths), device=lengths.device)
        return cls(lengths, (slots < lengths[:, None])[:, None])

    def select(self, sentences: Tensor, places: Tensor) -> SlotVisibility:
        """(S,) and which of their hypotheses, (S, w)."""
        return SlotVisibility(self.used[sentences], self.seen[sentences[:, None], places])

    def join(self, other: SlotVisibility, places: Tensor, total: int) -> SlotVisibility:
        used, slots = _placed(self.used, other.used, places, total), max(_most(self.used), _most(other.used))
        ours, theirs = (_longer(each.seen[..., :slots], slots) for each in (self, other))
        return SlotVisibility(used, _placed(ours, theirs, places, total))

    def go_on(self, number: Tensor, real: Tensor | None) -> tuple[Slots, Tensor]:
        """Tokens are added, numbered (B, L) for each hypothesis. → where they are laid, what they see (S, 1, w·L, M)"""
        sentences, width = self.seen.shape[:2]
        number_SwL = number.view(sentences, width, -1)
        slot_SwL = self.used[:, None, None] + number_SwL * width + torch.arange(width, device=number.device)[:, None]
        if real is None and number.shape[1] == 1:
            self.used = self.used + width
            count = _most(self.used)
            self.seen = _longer(self.seen, count, SPARE).scatter(-1, slot_SwL, True)
            return Slots(count, slot_RL=slot_SwL.flatten(1)), self.seen[:, None, :, :count]
        real_SwL = torch.ones_like(slot_SwL, dtype=torch.bool) if real is None else real.view_as(slot_SwL)
        self.used = self.used + real_SwL.sum(-1).amax(-1) * width
        count = _most(self.used)
        earlier = _longer(self.seen, count)[..., :count]
        new_SwLM = (torch.arange(count, device=number.device) == slot_SwL[..., None]) & real_SwL[..., None]
        sight = earlier[:, :, None] | (new_SwLM.cumsum(2) > 0)
        self.seen = earlier | new_SwLM.any(2)
        sight[..., 0] |= ~real_SwL  # padding has to see something, whatever it is
        return Slots.of(slot_SwL.flatten(1), real_SwL.flatten(1), count), sight.flatten(1, 2)[:, None]


def _in_order(rows: Tensor, count: int) -> bool:
    return torch.equal(rows, torch.arange(count, device=rows.device))


def _most(lengths: Tensor) -> int:
    return int(lengths.max()) if len(lengths) else 0


def _selected(rooms: GrowingTensors, rows: Tensor, slots: int) -> GrowingTensors:
    return {key: tuple(room.select(rows, slots) for room in several) for key, several in rooms.items()}


def _put(ours: GrowingTensors, theirs: GrowingTensors, rows: Tensor, total: int, in_use: tuple[int, int]) -> None:
    """Put their states in these rows of ours, of which there are so many then. (Who has none yet, needs nothing.)"""
    for key, several in theirs.items():
        if key not in ours:
            ours[key] = tuple(GrowingTensor(room.states, total, in_use[1]) for room in several)
        for room, new in zip(ours[key], several, strict=True):
            room.reach(total, max(in_use))
            room.put(rows, new.view(len(rows), in_use[1]))


def _placed(a: Tensor, b: Tensor, places: Tensor, total: int) -> Tensor:
    """The rows of a, and those of b in these places."""
    both = torch.cat([a, a.new_zeros(total - len(a), *a.shape[1:])])
    both[places] = b
    return both


def _longer(seen: Tensor, slots: int, spare: int = 0) -> Tensor:
    """With so many slots, and some to spare if there were fewer."""
    missing = slots - seen.shape[-1]
    return seen if missing <= 0 else F.pad(seen, (0, missing + spare))


def _each_once(memory: Memory, change: Callable[[Tensor], Tensor]) -> Memory:
    """Change each tensor of a memory; layers that shared one share it afterwards."""
    changed = {id(s): s for s in memory.states}
    changed = {key: change(s) for key, s in changed.items()}
    real = None if memory.real is None else change(memory.real)
    return memory._replace(states=tuple(changed[id(s)] for s in memory.states), real=real)


def _memory_of(memory: Memory | None, sentences: Tensor) -> Memory | None:
    """The memory of these sentences, as long as the longest of them."""
    return memory and _trimmed(_each_once(memory, lambda s: s.index_select(0, sentences)))


def _trimmed(memory: Memory) -> Memory:
    """Without columns that are padding throughout, and without a mask if nothing is padding."""
    if memory.real is None:
        return memory
    columns = torch.arange(1, memory.real.shape[1] + 1, device=memory.real.device)
    length = int((memory.real * columns).max()) if memory.real.numel() else 0
    memory = _each_once(memory, lambda s: s[:, :length])
    assert memory.real is not None
    return memory._replace(real=None) if bool(memory.real.all()) else memory


def _join_memories(a: Memory | None, b: Memory | None, places: Tensor, total: int) -> Memory | None:
    """The sentences of both, those of b in these places."""
    if a is None or b is None:
        return None
    a, b = (m if m.real is not None else m._replace(real=_all_real(m)) for m in (_without(a, places), b))
    length = max(m.states[0].shape[1] for m in (a, b))
    theirs: dict[int, Any] = {id(s): t for s, t in zip((*a.states, a.real), (*b.states, b.real), strict=True)}

    def join(ours: Tensor) -> Tensor:
        return _placed(_filled(ours, length), _filled(theirs[id(ours)], length), places, total)

    return _trimmed(_each_once(a, join))


def together(memories: Sequence[Memory]) -> Memory:
    """The sentences of several memories, one after the other."""
    first, length = memories[0], max(memory.states[0].shape[1] for memory in memories)
    if len(memories) == 1:
        return first
    real = [_filled(_all_real(m) if m.real is None else m.real, length) for m in memories]
    columns = list(zip(*(m.states for m in memories), strict=True))
    once = {id(states[0]): states for states in columns}  # layers that shared one share it afterwards
    joined = {key: torch.cat([_filled(s, length) for s in states]) for key, states in once.items()}
    return _trimmed(first._replace(states=tuple(joined[id(states[0])] for states in columns), real=torch.cat(real)))


def _without(memory: Memory, places: Tensor) -> Memory:
    """As long as the longest of those that stay: who leaves these places may have been longer than all others."""
    real = (_all_real(memory) if memory.real is None else memory.real).clone()
    real[places[places < len(real)]] = False
    return _trimmed(memory._replace(real=real))


def _all_real(memory: Memory) -> Tensor:
    return torch.ones(memory.states[0].shape[:2], dtype=torch.bool, device=memory.states[0].device)


def _filled(states: Tensor, length: int) -> Tensor:
    """(S, n, …) → (S, length, …), with 0 at the end."""
    missing = length - states.shape[1]
    return states if not missing else torch.cat([states, states.new_zeros(len(states), missing, *states.shape[2:])], 1)
