"""Tensors that grow: they are allocated larger than needed, so that new states can be added without a copy.

    GrowingTensor   states (rows, …, slots, ·), of which the first rows and the first slots are in use
    Slots           the slots of one pass's new tokens, the same for every tensor

Where autograd needs the old states, each write copies them first.

Letters: R rows, L new tokens of each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SPARE = 16  # slots that are allocated in advance
TOO_LARGE = 4  # a tensor that has more than this many times the memory in use is reallocated
GROWTH = 1.25  # if rows or slots are added, this many times the needed number is allocated


class GrowingTensor:
    """States (rows, …, slots, ·). Unwritten slots are zero: masked weights still multiply them, and 0 · NaN is NaN."""

    def __init__(self, like: Tensor, rows: int, slots: int):
        self.states = like.new_zeros(rows, *like.shape[1:-2], slots, like.shape[-1])

    @classmethod
    def of(cls, states: Tensor, spare: int = 0, rows: Tensor | None = None) -> GrowingTensor:
        """A copy of these states, or of these rows of them, with `spare` further slots."""
        made, slots = cls.__new__(cls), states.shape[-2]
        count = len(states) if rows is None else len(rows)
        made.states = states.new_empty(count, *states.shape[1:-2], slots + spare, states.shape[-1])
        made.states[..., slots:, :] = 0
        used = made.states.narrow(-2, 0, slots)
        if rows is None or torch.is_grad_enabled():
            used.copy_(states if rows is None else states.index_select(0, rows))
        else:
            torch.index_select(states, 0, rows, out=used)
        return made

    def view(self, rows: int, slots: int) -> Tensor:
        return self.states[:rows].narrow(-2, 0, slots)

    def reach(self, rows: int, slots: int) -> None:
        """Make at least `rows` × `slots` writable; no more than these are in use.

        A tensor that is far larger than this is reallocated: one long text must not cost memory ever after.
        """
        old, (had_rows, had_slots) = self.states, (len(self.states), self.states.shape[-2])
        more_rows, more_slots = rows > had_rows, slots > had_slots
        too_large = max(rows, had_rows) * had_slots > TOO_LARGE * (rows + SPARE) * (slots + SPARE)
        if not more_rows and not more_slots and not too_large and not _read_only(old):
            return
        kept_rows, kept_slots = min(rows, had_rows), min(slots, had_slots)
        rows = int(GROWTH * rows) if more_rows else rows
        slots = max(slots + SPARE, int(GROWTH * slots)) if more_slots or too_large else had_slots
        self.states = old.new_zeros(rows, *old.shape[1:-2], slots, old.shape[-1])
        self.view(kept_rows, kept_slots).copy_(old[:kept_rows].narrow(-2, 0, kept_slots))

    def put(self, rows: Tensor, states: Tensor) -> None:
        """Replace the states of these rows; slots after the new ones keep their values."""
        self.states.narrow(-2, 0, states.shape[-2]).index_copy_(0, rows, states.to(self.states.dtype))

    def select(self, rows: Tensor, slots: int) -> GrowingTensor:
        """A copy of these rows."""
        return GrowingTensor.of(self.states.narrow(-2, 0, slots), SPARE, rows)


class Slots:
    """The slots of a pass's new tokens: consecutive from `first`, or one per token. Padding goes to slot `count`."""

    def __init__(self, count: int, *, first: int = 0, slot_RL: Tensor | None = None):
        self.count = count  # slots in use after the pass
        self.first, self.slot_RL = first, slot_RL
        self._flat_indices: dict[tuple[int, int], Tensor] = {}

    @classmethod
    def of(cls, slot_RL: Tensor, real_RL: Tensor | None, count: int) -> Slots:
        return cls(count, slot_RL=slot_RL if real_RL is None else torch.where(real_RL, slot_RL, count))

    def write(self, tensor: GrowingTensor, new: Tensor) -> None:
        """Write new tokens (R, …, L, ·)."""
        tensor.reach(len(new), self.count + 1)
        if self.slot_RL is None:
            tensor.states[: len(new)].narrow(-2, self.first, new.shape[-2]).copy_(new)
        else:
            indices = self._flat(math.prod(new.shape[1:-2]), tensor.states.shape[-2])
            tensor.states.view(-1, new.shape[-1]).index_copy_(0, indices, new.reshape(-1, new.shape[-1]))

    def _flat(self, parts: int, slots: int) -> Tensor:
        """Indices of all new tokens (R · parts · L,) in a flattened (rows, parts, slots): computed once per pass."""
        assert self.slot_RL is not None
        if (parts, slots) not in self._flat_indices:
            rows, device = len(self.slot_RL), self.slot_RL.device
            starts = torch.arange(rows * parts, device=device).view(rows, parts, 1) * slots
            self._flat_indices[parts, slots] = (starts + self.slot_RL[:, None]).flatten()
        return self._flat_indices[parts, slots]


def _read_only(states: Tensor) -> bool:
    """Whether these must not be overwritten: autograd may need them, or they belong to the other inference mode."""
    other_mode = states.is_inference() != torch.is_inference_mode_enabled()
    return torch.is_grad_enabled() or states.requires_grad or other_mode
