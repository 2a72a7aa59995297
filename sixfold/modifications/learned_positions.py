"""Learned absolute positions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from sixfold.core import forms
from sixfold.core.call import Call
from sixfold.core.init import Normal, parameter
from sixfold.core.place import Place
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Position


class LearnedPositions(Position):
    """x_t ← x_t + P[t], with a table P (length, D) for each stack."""

    def __init__(self, spec: Spec, place: Place, length: int, std: float = 0.02):
        super().__init__(spec, place)
        if place.layer is not None:  # inside an attention it adds nothing
            return
        self.place, self.limit = place, length
        self.table = parameter((length, spec.sizes.d_model), Normal(std))

    def embed(self, x: Tensor, call: Call) -> Tensor:
        return x + F.embedding(call.positions, self.table)

    def form(self) -> forms.LearnedPositionsForm:
        return forms.LearnedPositionsForm(None if self.limit is None else self.table)


@modification("1705.03122", adds=lambda sizes, length=512: 2 * length * sizes.d_model, most={"length": 1_000_000})
def learned_positions(spec: Spec, *, length: int = 512) -> Spec:
    """A learned vector for each position, added to the embedding.

        x_t ← x_t + P[t],   P ∈ R^(length × D), one table for each stack

    There is no vector beyond `length`: a longer text is an error. Tables start as N(0, 0.02²).
    Parameters: length · d_model for each stack.
    """
    if length < 1:
        raise ValueError(f"learned_positions: length must be at least 1, got {length}")
    return replace(spec, position=partial(LearnedPositions, length=length))
