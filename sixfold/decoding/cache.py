"""What decoding remembers, so that each step computes only what is new.

Two kinds of rows. A *sentence* is what is being translated: its memory, and the keys and values that
cross-attention made of it, are held once. A *hypothesis* is one way of going on: its own keys and
values so far. Each sentence has the same number w of hypotheses, side by side:

    sentences      0           1           2            S
    hypotheses     0  1  2     3  4  5     6  7  8      S·w = B     (here w = 3)

Hypotheses may have different lengths. A token's state lies in the slot of its position, so that row b
fills slots 0 … lengths[b] − 1, and padding in a chunk lies nowhere:

    row 0, 5 tokens   ■ ■ ■ ■ ■
    row 1, 2 tokens   ■ ■ · · ·
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from sixfold.call import Call
    from sixfold.transformer import Memory

Key = Hashable  # (depth, the part's name within its layer)
States = tuple[Tensor, ...]  # each (rows, …, slots, ·)


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
        self._hypotheses: dict[Key, States] = {}
        self._sentences: dict[Key, States] = {}

    def grow(self, key: Key, new: States, call: Call) -> States:
        """Put the states of new tokens (B, …, L, ·) in their slots. → all, (B, …, M, ·)"""
        old = self._hypotheses.get(key)
        slots = call.key_positions.shape[1]
        if call.real is None and call.positions.shape[0] == 1:  # all rows stand at the same place
            before = slots - new[0].shape[-2]  # what lies beyond was left by a step that broke off
            states = (
                new
                if old is None
                else tuple(torch.cat([o[..., :before, :], n], -2) for o, n in zip(old, new, strict=True))
            )
        else:
            nowhere = torch.full_like(call.positions, slots)
            slot = call.positions if call.real is None else torch.where(call.real, call.positions, nowhere)
            states = tuple(_place(n, slot, slots, None if old is None else old[i]) for i, n in enumerate(new))
        self._hypotheses[key] = states
        return states

    def keep(self, key: Key, make: Callable[[], States]) -> States:
        """States of the sentences (S, …), made once."""
        if key not in self._sentences:
            self._sentences[key] = make()
        return self._sentences[key]

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
        longest = int(chosen.lengths.max()) if flat.numel() else 0
        chosen._hypotheses = {
            key: tuple(s.index_select(0, flat)[..., :longest, :] for s in states)
            for key, states in self._hypotheses.items()
        }
        if self._all_in_order(sentences):
            chosen.memory, chosen._sentences = self.memory, dict(self._sentences)
            return chosen
        chosen.memory = _each_once(self.memory, lambda s: s.index_select(0, sentences))
        chosen._sentences = {
            key: tuple(s.index_select(0, sentences) for s in states) for key, states in self._sentences.items()
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
        both.memory = _join_memories(self.memory, other.memory)
        # What only one side has made of its sentences is made anew, from the joint memory.
        both._sentences = {
            key: tuple(_join(a, b) for a, b in zip(states, other._sentences[key], strict=True))
            for key, states in self._sentences.items()
            if key in other._sentences
        }
        for key in self._hypotheses.keys() | other._hypotheses.keys():
            here, there = self._hypotheses.get(key, ()), other._hypotheses.get(key, ())
            here = here or tuple(_no_slots(t, len(self.lengths)) for t in there)
            there = there or tuple(_no_slots(h, len(other.lengths)) for h in here)
            both._hypotheses[key] = tuple(_join(a, b) for a, b in zip(here, there, strict=True))
        return both

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


def _place(new: Tensor, slot_BL: Tensor, slots: int, old: Tensor | None) -> Tensor:
    """Copy `old` and write `new` (B, …, L, ·) into its slots; the slot after the last takes the padding."""
    states = new.new_zeros(*new.shape[:-2], slots + 1, new.shape[-1])
    if old is not None:
        states[..., : old.shape[-2], :] = old[..., :slots, :]
    index = slot_BL.view(slot_BL.shape[0], *(1,) * (new.dim() - 3), slot_BL.shape[1], 1)
    return states.scatter_(-2, index.expand_as(new), new)[..., :slots, :]


def _join(a: Tensor, b: Tensor) -> Tensor:
    """Rows of a, then rows of b; the one with fewer slots gets empty ones at the end."""
    slots = max(a.shape[-2], b.shape[-2])
    return torch.cat([F.pad(t, (0, 0, 0, slots - t.shape[-2])) for t in (a, b)])


def _no_slots(like: Tensor, rows: int) -> Tensor:
    return like.new_zeros(rows, *like.shape[1:-2], 0, like.shape[-1])


def _each_once(memory: Memory | None, change: Callable[[Tensor], Tensor]) -> Memory | None:
    """Change each tensor of a memory; layers that shared one share it afterwards."""
    if memory is None:
        return None
    changed = {id(s): s for s in memory.states}
    changed = {key: change(s) for key, s in changed.items()}
    real = None if memory.real is None else change(memory.real)
    return memory._replace(states=tuple(changed[id(s)] for s in memory.states), real=real)


def _join_memories(a: Memory | None, b: Memory | None) -> Memory | None:
    if a is None or b is None:
        return None
    partner = {id(s): t for s, t in zip(a.states, b.states, strict=True)}
    joined = _each_once(a._replace(real=None), lambda s: _join(s, partner[id(s)]))
    if joined is None or (a.real is b.real is None and a.states[0].shape[1] == b.states[0].shape[1]):
        return joined
    reals = [
        torch.ones(m.states[0].shape[:2], dtype=torch.bool, device=m.states[0].device) if m.real is None else m.real
        for m in (a, b)
    ]
    return joined._replace(real=_join(*(r[..., None] for r in reals))[..., 0])
