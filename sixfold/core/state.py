"""The state of a decoder between two steps, so that each step computes only what is new.

Two kinds of rows. A *sentence* is one input: its memory, and the keys and values that cross-attention makes of it,
are held once. A *hypothesis* is one possible output. Each sentence has the same number w of hypotheses, side by side:

    sentences      0           1           2            S
    hypotheses     0  1  2     3  4  5     6  7  8      S·w = B     (here w = 3)

Four kinds of states:

    keep     made of a sentence's memory, once
    grow     one slot per token of a hypothesis; a hypothesis that forks is copied

                 row 0, 5 tokens   ■ ■ ■ ■ ■ _ _ _
                 row 1, 2 tokens   ■ ■ · · · _ _ _

    share    one slot per token and hypothesis, held by the sentence: w slots per step. A hypothesis sees the slots of
             its own past. A fork copies no state, only the row of booleans that marks the slots it sees:

                 slots of a sentence   a b  c d  e f      w = 2
                 the first sees        ■ ·  ■ ·  ■ ·      a c e
                 the second sees       ■ ·  · ■  · ■      a d f: it forked from the first after a

    carry    of fixed size per hypothesis, replaced at every step: an LSTM's state, a convolution's last tokens. It
             starts from the sentence's memory; a hypothesis that forks is copied

A pass takes effect at `finish`: one that is interrupted before can be repeated.

Letters: S sentences, w hypotheses of each, B = S·w rows, L new tokens, M slots, n source length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from sixfold.core.attention_kernels import fold
from sixfold.core.growing_tensor import SPARE, GrowingTensor, Slots
from sixfold.core.memory import Memory, put_rows

Key = Hashable  # (depth, the part's name within its layer)
States = tuple[Tensor, ...]  # each (rows, …, slots, ·), or (rows, …) if it is carried
GrowingTensors = dict[Key, tuple[GrowingTensor, ...]]


class Cache:
    """The states of a decoder between two calls. A new cache is made of a memory, or of a number of rows.

    `select` and `join` consume it: use the cache that they return.
    """

    light = False

    def __init__(self, memory: Memory | None = None, *, rows: int | None = None, device: torch.device | None = None):
        if memory is not None and not isinstance(memory, Memory):
            raise ValueError(f"a cache takes the encoder's memory, or rows=…, got {type(memory).__name__}")
        if memory is not None:
            rows, device = memory.rows, memory.states[0].device
        if rows is None:
            raise ValueError("a cache needs the encoder's memory, or the number of rows")
        self.memory = memory
        self.width = 1  # hypotheses per sentence
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)  # (B,) tokens held
        self._growing: GrowingTensors = {}
        self._shared: GrowingTensors = {}
        self._kept: GrowingTensors = {}
        self._carried: dict[Key, States] = {}
        self._replacing: dict[Key, States] = {}  # carried states after this pass
        self._unmade: Tensor | None = None  # (S,): sentences that joined, for which nothing is kept yet
        self._paths: SlotVisibility | None = None  # None: nothing is shared, or by one hypothesis, which sees all
        self._pass = NewTokens()

    @property
    def sentences(self) -> int:
        return len(self.lengths) // self.width

    @property
    def fresh(self) -> Tensor:
        """(B,): the rows that have read nothing."""
        return self.lengths == 0

    def begin(self, positions: Tensor, real: Tensor | None, count: int) -> None:
        """A pass begins over new tokens at `positions` (B or 1, L). With them, the longest row has `count` tokens."""
        self._pass, self._replacing = NewTokens(positions, real, count), {}

    def finish(self, new: int | Tensor) -> None:
        """The pass ends: the rows have `new` tokens more, (B,) or the same number for all."""
        self.lengths = self.lengths + new
        self._carried, self._unmade = {**self._carried, **self._replacing}, None
        if self._pass.paths is not None:
            self._paths = self._pass.paths

    def grow(self, key: Key, new: States) -> States:
        """States of new tokens (B, …, L, ·) → those of all tokens so far (B, …, M, ·)."""
        return self._write(self._growing, key, new, self._pass.own_slots)

    def share(self, key: Key, new: States) -> tuple[States, Tensor | None]:
        """Heads of new tokens (B, H, L, ·) → those of all hypotheses of a sentence (S, H, M, ·), and a mask.

        The mask (S, 1, w·L, M) says which slots each folded query sees. If it is None, the call's sight holds.
        """
        folded = tuple(fold(states, self.sentences) for states in new)
        if self.width == 1 and self._paths is None:
            return self._write(self._shared, key, folded, self._pass.own_slots), None
        slots, seen = self._pass.shared(self._visibility(), self.lengths)
        return self._write(self._shared, key, folded, slots), seen

    def _visibility(self) -> SlotVisibility:
        return self._paths or SlotVisibility.straight(self.lengths, self.width)

    def carried(self, key: Key, first: Callable[[Memory | None], States]) -> States:
        """The state (B, …) before this pass. Rows that have read nothing start from `first(memory)`, (S or 1, …)."""
        fresh = self.fresh
        if key in self._carried and not bool(fresh.any()):
            return self._carried[key]
        begun = tuple(self._of_rows(state) for state in first(self.memory))
        if key not in self._carried:
            return begun
        pairs = zip(begun, self._carried[key], strict=True)
        return tuple(torch.where(fresh.view(-1, *[1] * (old.dim() - 1)), new, old) for new, old in pairs)

    def _of_rows(self, state: Tensor) -> Tensor:
        """(S or 1, …) → (B, …)"""
        state = spread(state, self.sentences)
        return state if self.width == 1 else state.repeat_interleave(self.width, 0)

    def carry(self, key: Key, state: States) -> None:
        """The state (B, …) after this pass."""
        self._replacing[key] = state

    def of_own_past(self, key: Key, weights_BHLM: Tensor) -> Tensor:
        """Weights on slots, where they are shared → those on each hypothesis's own tokens, in their order."""
        paths = self._pass.paths
        if paths is None or key not in self._shared:
            return weights_BHLM
        seen_BM = paths.seen.flatten(0, 1)[:, : weights_BHLM.shape[-1]]
        order = (~seen_BM).long().argsort(dim=-1, stable=True)[:, : int(seen_BM.sum(-1).max())]
        return weights_BHLM.gather(-1, order[:, None, None].expand(*weights_BHLM.shape[:3], -1))

    def _write(self, tensors: GrowingTensors, key: Key, new: States, slots: Slots) -> States:
        if key not in tensors:
            tensors[key] = tuple(GrowingTensor(states, len(states), slots.count + 1) for states in new)
        for tensor, states in zip(tensors[key], new, strict=True):
            slots.write(tensor, states)
        return tuple(tensor.view(len(new[0]), slots.count) for tensor in tensors[key])

    def keep(self, key: Key, memory: States, make: Callable[..., States]) -> States:
        """States of the sentences (S, …, n, ·): `make` of these tensors of the memory, once for each sentence."""
        rows, length = memory[0].shape[0], self._memory_length
        if key not in self._kept:
            self._kept[key] = tuple(map(GrowingTensor.of, make(*memory)))
        elif self._unmade is not None:
            which = self._unmade.nonzero()[:, 0]
            made = make(*(tensor.index_select(0, which) for tensor in memory))
            for tensor, states in zip(self._kept[key], made, strict=True):
                tensor.reach(rows, length)
                tensor.put(which, states)
        return tuple(tensor.view(rows, length) for tensor in self._kept[key])

    def select(self, rows: Tensor) -> Cache:
        """The cache with these hypotheses: rows (S, w), a line per sentence, or (S,) for w = 1.

        The w hypotheses of a line must belong to one sentence. A row may occur several times, or not at all: this is
        how beams begin, fork, and end.
        """
        if not isinstance(rows, Tensor) or rows.dim() not in (1, 2):
            raise ValueError(f"select takes a tensor of rows, (S, w) or (S,), got {rows!r}")
        lines = rows[:, None] if rows.dim() == 1 else rows
        sentences = lines[:, 0] // self.width
        if not torch.equal(lines // self.width, sentences[:, None].expand_as(lines)):
            raise ValueError("select: hypotheses of different sentences in one line")
        chosen = Cache(rows=lines.numel(), device=self.lengths.device)
        chosen.width, chosen.memory, chosen._unmade = lines.shape[1], self.memory, self._unmade
        chosen._shared, chosen._kept = self._shared, self._kept
        chosen._take_hypotheses(self, lines.reshape(-1))
        if self._shared and (self._paths is not None or chosen.width > 1):
            chosen._paths = self._visibility().select(sentences, lines % self.width)
        if not _in_order(sentences, self.sentences):
            chosen._take_sentences(sentences)
        return chosen

    def _take_hypotheses(self, of: Cache, rows: Tensor) -> None:
        """Take the states that belong to hypotheses."""
        self.lengths, self._growing, self._carried = of.lengths[rows], of._growing, of._carried
        if not _in_order(rows, len(of.lengths)):
            self._growing = _selected(of._growing, rows, _largest(self.lengths))
            self._carried = {
                key: tuple(state.index_select(0, rows) for state in states) for key, states in of._carried.items()
            }

    def _take_sentences(self, sentences: Tensor) -> None:
        """Keep only these sentences in the states that belong to sentences."""
        self.memory = None if self.memory is None else self.memory.select(sentences)
        self._shared = _selected(self._shared, sentences, self._slots_in_use())
        self._kept = _selected(self._kept, sentences, self._memory_length)
        self._unmade = None if self._unmade is None else self._unmade[sentences]

    def join(self, other: Cache, free: Sequence[int] = ()) -> Cache:
        """The sentences of both caches, each at its own length. `other` takes the rows `free`, then new rows."""
        if self.width != other.width:
            raise ValueError(f"join: {self.width} hypotheses per sentence here, {other.width} there")
        if (self.memory is None) != (other.memory is None):
            raise ValueError("join: one cache has an encoder's memory, the other has none")
        here, there = self.sentences, other.sentences
        free = list(free)[:there]
        total = here + there - len(free)
        index = torch.tensor([*free, *range(here, total)], device=self.lengths.device)
        self._join_hypotheses(other, index, total)
        self._join_sentences(other, index, total)
        unmade = torch.zeros(here, dtype=torch.bool, device=index.device) if self._unmade is None else self._unmade
        self._unmade = put_rows(unmade, torch.ones_like(index, dtype=torch.bool), index, total)
        return self

    def _join_hypotheses(self, other: Cache, index: Tensor, total: int) -> None:
        """Put the states of the other's hypotheses into the rows of the sentences `index`."""
        if self._shared or other._shared:
            if self.width > 1 or self._paths is not None or other._paths is not None:
                self._paths = self._visibility().join(other._visibility(), index, total)
            _put(self._shared, other._shared, index, total, (self._slots_in_use(), other._slots_in_use()))
        rows = (index[:, None] * self.width + torch.arange(self.width, device=index.device)).flatten()
        total *= self.width
        _put(self._growing, other._growing, rows, total, (_largest(self.lengths), _largest(other.lengths)))
        for key in {**self._carried, **other._carried}:
            self._carried[key] = _joined(self._carried.get(key), other._carried.get(key), rows, total)
        self.lengths = put_rows(self.lengths, other.lengths, rows, total)

    def _join_sentences(self, other: Cache, index: Tensor, total: int) -> None:
        """Put the other's memory into the rows `index`."""
        if self.memory is not None and other.memory is not None:
            self.memory = self.memory.join(other.memory, index, total)
        for tensor in chain.from_iterable(self._kept.values()):
            tensor.reach(total, self._memory_length)

    def release(self) -> None:
        """Nothing to give back: Python frees the tensors."""

    @property
    def _memory_length(self) -> int:
        return 0 if self.memory is None else self.memory.length

    def _slots_in_use(self) -> int:
        """The number of shared slots that the longest sentence uses."""
        return _largest(self.lengths if self._paths is None else self._paths.used)

    def __repr__(self) -> str:
        return f"Cache({self.sentences} sentences × {self.width} hypotheses, lengths {self.lengths.tolist()})"


class NewTokens:
    """The new tokens of one pass: the slots of their states, computed when a part first needs them."""

    def __init__(self, positions: Tensor | None = None, real: Tensor | None = None, count: int = 0):
        self.positions, self.real, self.count = positions, real, count
        self.paths: SlotVisibility | None = None  # after this pass, if something was shared
        self._own: Slots | None = None
        self._shared: tuple[Slots, Tensor] | None = None

    @property
    def own_slots(self) -> Slots:
        """One slot per position."""
        if self._own is None:
            assert self.positions is not None, "a pass begins with Cache.begin"
            if self.real is None and len(self.positions) == 1:  # all rows are at the same position
                self._own = Slots(self.count, first=self.count - self.positions.shape[1])
            else:
                self._own = Slots.of(self.positions, self.real, self.count)
        return self._own

    def shared(self, paths: SlotVisibility, lengths: Tensor) -> tuple[Slots, Tensor]:
        """The slots of shared states, and the mask of those that each query sees (S, 1, w·L, M)."""
        if self._shared is None:
            assert self.positions is not None, "a pass begins with Cache.begin"
            self.paths, *self._shared = paths.extended(self.positions - lengths[:, None], self.real)  # type: ignore[assignment]
        return self._shared  # type: ignore[return-value]


class SlotVisibility:
    """Which of a sentence's slots each of its hypotheses sees."""

    def __init__(self, used: Tensor, seen: Tensor):
        self.used = used  # (S,): slots in use
        self.seen = seen  # (S, w, M or more)

    @classmethod
    def straight(cls, lengths: Tensor, width: int) -> SlotVisibility:
        """One hypothesis per sentence, which sees all its tokens; or `width` hypotheses that have read nothing."""
        slots = torch.arange(_largest(lengths), device=lengths.device)
        assert width == 1 or not len(slots), "hypotheses that have read something have their visibility"
        return cls(lengths[::width], (slots < lengths[:, None]).view(len(lengths) // width, width, len(slots)))

    def select(self, sentences: Tensor, hypotheses: Tensor) -> SlotVisibility:
        """These sentences (S,), with these hypotheses (S, w) of each."""
        return SlotVisibility(self.used[sentences], self.seen[sentences[:, None], hypotheses])

    def join(self, other: SlotVisibility, index: Tensor, total: int) -> SlotVisibility:
        used, slots = put_rows(self.used, other.used, index, total), max(_largest(self.used), _largest(other.used))
        ours, theirs = (_longer(each.seen[..., :slots], slots) for each in (self, other))
        return SlotVisibility(used, put_rows(ours, theirs, index, total))

    def extended(self, number: Tensor, real: Tensor | None) -> tuple[SlotVisibility, Slots, Tensor]:
        """Add new tokens, numbered (B, L) in each row. → the visibility, their slots, and their mask (S, 1, w·L, M)"""
        sentences, width = self.seen.shape[:2]
        number_SwL = number.view(sentences, width, -1)
        slot_SwL = self.used[:, None, None] + number_SwL * width + torch.arange(width, device=number.device)[:, None]
        if real is None and number.shape[1] == 1:
            used = self.used + width
            count = _largest(used)
            seen = _longer(self.seen, count, SPARE).scatter(-1, slot_SwL, True)
            return SlotVisibility(used, seen), Slots(count, slot_RL=slot_SwL.flatten(1)), seen[:, None, :, :count]
        real_SwL = torch.ones_like(slot_SwL, dtype=torch.bool) if real is None else real.view_as(slot_SwL)
        used = self.used + real_SwL.sum(-1).amax(-1) * width
        count = _largest(used)
        earlier = _longer(self.seen, count)[..., :count]
        new_SwLM = (torch.arange(count, device=number.device) == slot_SwL[..., None]) & real_SwL[..., None]
        sight = earlier[:, :, None] | (new_SwLM.cumsum(2) > 0)
        sight[..., 0] |= ~real_SwL  # a softmax over nothing is NaN: let padding see one slot
        after = SlotVisibility(used, earlier | new_SwLM.any(2))
        return after, Slots.of(slot_SwL.flatten(1), real_SwL.flatten(1), count), sight.flatten(1, 2)[:, None]


def spread(state: Tensor, sentences: int) -> Tensor:
    """A first state (S or 1, …) → (S, …)"""
    if state.shape[0] not in (1, sentences):
        raise ValueError(
            f"first(memory) of a carried state has one row, or one per sentence ({sentences} here), not one per row of "
            f"x; got {state.shape[0]} rows"
        )
    return state.expand(sentences, *state.shape[1:])


def _in_order(rows: Tensor, count: int) -> bool:
    return torch.equal(rows, torch.arange(count, device=rows.device))


def _largest(lengths: Tensor) -> int:
    return int(lengths.max()) if len(lengths) else 0


def _selected(tensors: GrowingTensors, rows: Tensor, slots: int) -> GrowingTensors:
    return {key: tuple(tensor.select(rows, slots) for tensor in several) for key, several in tensors.items()}


def _put(ours: GrowingTensors, theirs: GrowingTensors, rows: Tensor, total: int, in_use: tuple[int, int]) -> None:
    """Copy `theirs` into `rows` of `ours`, grown to `total` rows; states that `theirs` lacks are left as they are."""
    for key, several in theirs.items():
        if key not in ours:
            ours[key] = tuple(GrowingTensor(tensor.states, total, in_use[1]) for tensor in several)
        for tensor, new in zip(ours[key], several, strict=True):
            tensor.reach(total, max(in_use))
            tensor.put(rows, new.view(len(rows), in_use[1]))


def _joined(ours: States | None, theirs: States | None, rows: Tensor, total: int) -> States:
    """Carried states of both. A side that has read nothing has none: zeros, which `carried` replaces by the first."""
    ours = tuple(state[:0] for state in theirs or ()) if ours is None else ours
    missing = tuple(state.new_zeros(len(rows), *state.shape[1:]) for state in ours)
    return tuple(put_rows(a, b, rows, total) for a, b in zip(ours, theirs or missing, strict=True))


def _longer(seen: Tensor, slots: int, spare: int = 0) -> Tensor:
    """With at least `slots` slots; if slots are added, `spare` more."""
    missing = slots - seen.shape[-1]
    return seen if missing <= 0 else F.pad(seen, (0, missing + spare))
