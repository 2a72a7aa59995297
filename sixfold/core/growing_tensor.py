"""Tensors with room to spare, so that what is new is written where it belongs and nothing is copied.

    Room          states (rows, …, slots, ·), of which the first rows and the first slots are in use
    Slots         where the new tokens of one pass are laid, whatever the room

Where a gradient is wanted, each writing makes a copy first.

Letters: R rows, L new tokens of each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SPARE = 16  # slots that are made ahead
MUCH = 4  # times as much room as is needed is too much
MORE = 1.25  # times as many rows or slots are made ahead, where some are added


class GrowingTensor:
    """States (rows, …, slots, ·). What was never written is 0: it is multiplied by 0, and needs to be a number."""

    def __init__(self, like: Tensor, rows: int, slots: int):
        self.states = like.new_zeros(rows, *like.shape[1:-2], slots, like.shape[-1])

    @classmethod
    def of(cls, states: Tensor, spare: int = 0, rows: Tensor | None = None) -> GrowingTensor:
        """Room with these states, or with these rows of them, and a few slots more."""
        room, slots = cls.__new__(cls), states.shape[-2]
        count = len(states) if rows is None else len(rows)
        room.states = states.new_empty(count, *states.shape[1:-2], slots + spare, states.shape[-1])
        room.states[..., slots:, :] = 0
        used = room.states.narrow(-2, 0, slots)
        if rows is None or torch.is_grad_enabled():
            used.copy_(states if rows is None else states.index_select(0, rows))
        else:
            torch.index_select(states, 0, rows, out=used)
        return room

    def view(self, rows: int, slots: int) -> Tensor:
        return self.states[:rows].narrow(-2, 0, slots)

    def reach(self, rows: int, slots: int) -> None:
        """Have so many rows and slots, that may be written to; no more than these are in use.

        Where there is far more room than that, it is given back: what one long text needed is not kept for all.
        """
        old, (had_rows, had_slots) = self.states, (len(self.states), self.states.shape[-2])
        more_rows, more_slots = rows > had_rows, slots > had_slots
        too_large = max(rows, had_rows) * had_slots > MUCH * (rows + SPARE) * (slots + SPARE)
        if not more_rows and not more_slots and not too_large and not _kept(old):
            return
        kept_rows, kept_slots = min(rows, had_rows), min(slots, had_slots)
        rows = int(MORE * rows) if more_rows else rows
        slots = max(slots + SPARE, int(MORE * slots)) if more_slots or too_large else had_slots
        self.states = old.new_zeros(rows, *old.shape[1:-2], slots, old.shape[-1])
        self.view(kept_rows, kept_slots).copy_(old[:kept_rows].narrow(-2, 0, kept_slots))

    def put(self, rows: Tensor, states: Tensor) -> None:
        """Other states for these rows; beyond their slots, all stays as it was."""
        self.states.narrow(-2, 0, states.shape[-2]).index_copy_(0, rows, states.to(self.states.dtype))

    def select(self, rows: Tensor, slots: int) -> GrowingTensor:
        """The room of these rows."""
        return GrowingTensor.of(self.states.narrow(-2, 0, slots), SPARE, rows)


class Slots:
    """Where the new tokens of a pass are laid: from one slot on, or each in its own; padding in the one after all."""

    def __init__(self, count: int, *, first: int = 0, slot_RL: Tensor | None = None):
        self.count = count  # of slots in use, when they are laid
        self.first, self.slot_RL = first, slot_RL
        self._places: dict[tuple[int, int], Tensor] = {}

    @classmethod
    def of(cls, slot_RL: Tensor, real_RL: Tensor | None, count: int) -> Slots:
        return cls(count, slot_RL=slot_RL if real_RL is None else torch.where(real_RL, slot_RL, count))

    def lay(self, room: GrowingTensor, new: Tensor) -> None:
        """Write new tokens (R, …, L, ·)."""
        room.reach(len(new), self.count + 1)
        if self.slot_RL is None:
            room.states[: len(new)].narrow(-2, self.first, new.shape[-2]).copy_(new)
        else:
            places = self._flat(math.prod(new.shape[1:-2]), room.states.shape[-2])
            room.states.view(-1, new.shape[-1]).index_copy_(0, places, new.reshape(-1, new.shape[-1]))

    def _flat(self, parts: int, room: int) -> Tensor:
        """The places of all new tokens (R · parts · L,) among rows × parts × slots: the same for all layers."""
        assert self.slot_RL is not None
        if (parts, room) not in self._places:
            rows, device = len(self.slot_RL), self.slot_RL.device
            starts = torch.arange(rows * parts, device=device).view(rows, parts, 1) * room
            self._places[parts, room] = (starts + self.slot_RL[:, None]).flatten()
        return self._places[parts, room]


def _kept(states: Tensor) -> bool:
    """Whether these may not be written over: for a backward pass, or for another mode."""
    other_mode = states.is_inference() != torch.is_inference_mode_enabled()
    return torch.is_grad_enabled() or states.requires_grad or other_mode
