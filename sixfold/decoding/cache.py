"""What decoding remembers, so that each step computes only what is new.

Two kinds of rows. A *sentence* is what is being translated: its memory, and the keys and values that
cross-attention made of it, are held once. A *hypothesis* is one way of going on: its own keys and
values so far. Each sentence has the same number w of hypotheses, side by side:

    sentences      0           1           2            S
    hypotheses     0  1  2     3  4  5     6  7  8      S·w = B     (here w = 3)

Hypotheses may have different lengths. A token's state lies in the slot of its position, so that row b
fills slots 0 … lengths[b] − 1, and padding in a chunk lies nowhere:

    row 0, 5 tokens   ■ ■ ■ ■ ■ _ _ _
    row 1, 2 tokens   ■ ■ · · · _ _ _

More slots (_) lie ready than are in use, so that new tokens are written where they belong and nothing
is copied; where a gradient is wanted, each step makes a copy instead.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from sixfold.call import Call
    from sixfold.transformer import Memory

Key = Hashable  # (depth, the part's name within its layer)
States = tuple[Tensor, ...]  # each (rows, …, slots, ·)

SPARE = 16  # slots that are made ahead


class Cache:
    """The states of a decoder between two calls. A fresh one holds a memory, or just rows."""

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
        self.slots = 0  # in use: the most tokens that a row has
        self._hypotheses: dict[Key, States] = {}  # (B, slots and spare ones, …, ·): a row lies in one piece
        self._sentences: dict[Key, States] = {}  # (S, …, n, ·), or fewer rows: those that joined are yet to be made

    def grow(self, key: Key, new: States, call: Call) -> States:
        """Put the states of new tokens (B, …, L, ·) in their slots. → all, (B, …, M, ·)"""
        slots, grown = call.key_positions.shape[1], []
        even = call.real is None and call.positions.shape[0] == 1  # all rows stand at the same place
        for old, n in zip(self._hypotheses.get(key) or (None,) * len(new), new, strict=True):
            line = n.transpose(1, -2)  # (B, L, …, ·)
            states = _with_room(old, line, self.slots, slots)
            if even:
                states.narrow(1, slots - line.shape[1], line.shape[1]).copy_(line)
            else:
                states[:, self.slots : slots] = 0  # a row's empty slots are multiplied by 0, which needs a number
                _place(states, line, call)
            grown.append(states)
        self._hypotheses[key] = tuple(grown)
        return tuple(states.narrow(1, 0, slots).transpose(1, -2) for states in grown)

    def keep(self, key: Key, memory_SnD: Tensor, make: Callable[[Tensor], States]) -> States:
        """States of the sentences (S, …, n, ·), made of the memory, once for each."""
        held = self._sentences.get(key)
        rows = 0 if held is None else len(held[0])
        if rows < len(memory_SnD):
            new = make(memory_SnD[rows:])
            self._sentences[key] = held = new if held is None else _join_each(held, new)
        assert held is not None
        return held

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
        chosen = Cache(rows=flat.shape[0], device=self.lengths.device)
        chosen.width = lines.shape[1]
        chosen.lengths = self.lengths[flat]
        chosen.slots = int(chosen.lengths.max()) if flat.numel() else 0
        chosen._hypotheses = {
            key: tuple(_rows(s, flat, chosen.slots) for s in states) for key, states in self._hypotheses.items()
        }
        if self._all_in_order(sentences):
            chosen.memory, chosen._sentences = self.memory, dict(self._sentences)
            return chosen
        chosen.memory, length = _memory_of(self.memory, sentences)
        chosen._sentences = {
            key: tuple(s[..., :length, :].index_select(0, sentences) for s in states)
            for key, states in self._sentences.items()
            if self._complete(states)
        }
        return chosen

    def join(self, other: Cache) -> Cache:
        """Both caches' rows, this one's first, as one cache. Each may be at its own length."""
        if self.width != other.width:
            raise ValueError(f"join: {self.width} hypotheses per sentence here, {other.width} there")
        if (self.memory is None) != (other.memory is None):
            raise ValueError("join: one cache has an encoder's memory, the other has none")
        both = Cache(rows=len(self.lengths) + len(other.lengths), device=self.lengths.device)
        both.width = self.width
        both.lengths = torch.cat([self.lengths, other.lengths])
        both.slots = max(self.slots, other.slots)
        both.memory = _join_memories(self.memory, other.memory)
        both._sentences = {  # what the other side has not made yet, `keep` will make
            key: _join_each(states, other._sentences.get(key, ())) if self._complete(states) else states
            for key, states in self._sentences.items()
        }
        for key in self._hypotheses.keys() | other._hypotheses.keys():
            here, there = self._hypotheses.get(key, ()), other._hypotheses.get(key, ())
            here = here or tuple(t.new_empty(len(self.lengths), 0, *t.shape[2:]) for t in there)
            there = there or tuple(h.new_empty(len(other.lengths), 0, *h.shape[2:]) for h in here)
            both._hypotheses[key] = tuple(
                _join(a[:, : self.slots], b[:, : other.slots], axis=1, spare=SPARE)
                for a, b in zip(here, there, strict=True)
            )
        return both

    def _complete(self, states: States) -> bool:
        """Whether there are states of all sentences."""
        return len(states[0]) * self.width == len(self.lengths)

    def __repr__(self) -> str:
        sentences = len(self.lengths) // self.width
        return f"Cache({sentences} sentences × {self.width} hypotheses, lengths {self.lengths.tolist()})"

    def _all_in_order(self, sentences: Tensor) -> bool:
        return torch.equal(sentences, torch.arange(len(self.lengths) // self.width, device=sentences.device))


def fold(q: Tensor, sentences: int) -> Tensor:
    """(S·w, H, L, K) → (S, H, w·L, K): the w hypotheses of a sentence share its memory, uncopied."""
    if q.shape[0] == sentences:
        return q
    return q.unflatten(0, (sentences, -1)).transpose(1, 2).flatten(2, 3)


def unfold(heads: Tensor, rows: int) -> Tensor:
    """(S, H, w·L, K) → (S·w, H, L, K)."""
    if heads.shape[0] == rows:
        return heads
    return heads.unflatten(2, (rows // heads.shape[0], -1)).transpose(1, 2).flatten(0, 1)


def _with_room(old: Tensor | None, line: Tensor, used: int, slots: int) -> Tensor:
    """`old` (B, slots, …, ·), if there is room for so many slots and one for padding, or else a copy that has it."""
    kept = torch.is_grad_enabled() or (old is not None and old.requires_grad)  # for a backward pass: write elsewhere
    mode = torch.is_inference_mode_enabled()
    if old is not None and not kept and old.shape[1] > slots and old.is_inference() == mode:
        return old
    room = line.new_empty(line.shape[0], slots + (1 if kept else SPARE), *line.shape[2:])
    if old is not None:
        room[:, :used] = old[:, :used]
    return room


def _place(states: Tensor, line: Tensor, call: Call) -> None:
    """Write the new tokens (B, L, …, ·) into their slots; the slot after those in use takes the padding."""
    rows, room = states.shape[:2]
    slot_BL = call.positions
    if call.real is not None:
        slot_BL = torch.where(call.real, slot_BL, call.key_positions.shape[1])
    index_BL = torch.arange(0, rows * room, room, device=slot_BL.device)[:, None] + slot_BL
    states.flatten(0, 1).index_copy_(0, index_BL.flatten(), line.flatten(0, 1))


def _rows(states: Tensor, rows: Tensor, slots: int) -> Tensor:
    """These rows of states (B, slots, …, ·), and spare slots, if no gradient needs to go back."""
    if torch.is_grad_enabled():
        return states[:, :slots].index_select(0, rows)
    chosen = states.new_empty(len(rows), slots + SPARE, *states.shape[2:])
    torch.index_select(states.narrow(1, 0, slots), 0, rows, out=chosen.narrow(1, 0, slots))
    return chosen


def _join_each(a: States, b: States) -> States:
    """Rows of both; of a only, if b has none."""
    return tuple(_join(s, t) for s, t in zip(a, b, strict=True)) if b else a


def _join(a: Tensor, b: Tensor, axis: int = -2, spare: int = 0) -> Tensor:
    """Rows of a, then rows of b; the one with fewer slots gets empty ones at the end."""
    shape = list(a.shape)
    shape[0], shape[axis] = len(a) + len(b), max(a.shape[axis], b.shape[axis]) + spare
    both = a.new_empty(shape)
    for part, rows in ((a, both[: len(a)]), (b, both[len(a) :])):
        slots = part.shape[axis]
        rows.narrow(axis, 0, slots).copy_(part)
        rows.narrow(axis, slots, shape[axis] - slots).zero_()
    return both


def _each_once(memory: Memory | None, change: Callable[[Tensor], Tensor]) -> Memory | None:
    """Change each tensor of a memory; layers that shared one share it afterwards."""
    if memory is None:
        return None
    changed = {id(s): s for s in memory.states}
    changed = {key: change(s) for key, s in changed.items()}
    real = None if memory.real is None else change(memory.real)
    return memory._replace(states=tuple(changed[id(s)] for s in memory.states), real=real)


def _memory_of(memory: Memory | None, sentences: Tensor) -> tuple[Memory | None, int | None]:
    """The memory of these sentences, as long as the longest of them, and how long that is."""
    if memory is None or memory.real is None:
        return _each_once(memory, lambda s: s.index_select(0, sentences)), None
    column = torch.arange(1, memory.real.shape[1] + 1, device=sentences.device)
    length = int((memory.real.index_select(0, sentences) * column).max()) if len(sentences) else 0
    chosen = _each_once(memory, lambda s: s[:, :length].index_select(0, sentences))
    if chosen is not None and chosen.real is not None and bool(chosen.real.all()):
        chosen = chosen._replace(real=None)
    return chosen, length


def _join_memories(a: Memory | None, b: Memory | None) -> Memory | None:
    if a is None or b is None:
        return None
    partner = {id(s): t for s, t in zip(a.states, b.states, strict=True)}
    joined = _each_once(a._replace(real=None), lambda s: _join(s, partner[id(s)]))
    if joined is None or (a.real is b.real is None and a.states[0].shape[1] == b.states[0].shape[1]):
        return joined
    here, there = (
        torch.ones(m.states[0].shape[:2], dtype=torch.bool, device=m.states[0].device) if m.real is None else m.real
        for m in (a, b)
    )
    return joined._replace(real=_join(here, there, axis=1))
