"""Pools: they turn the states of a text into one vector, so that a whole text can be classified.

Letters: S rows, n length, D model width.
"""

from __future__ import annotations

from torch import Tensor

from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, SpecLike


class MeanPool(ModelPart):
    """Mean of the states that are not padding: one vector for a whole text."""

    def __init__(self, spec: SpecLike, place: Place):
        super().__init__()

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        """(S, n, D), and which of the states are real → (S, D)"""
        if real is None:
            return x.mean(1)
        weight = real.to(x.dtype)[..., None]
        return (x * weight).sum(1) / weight.sum(1).clamp(min=1)
