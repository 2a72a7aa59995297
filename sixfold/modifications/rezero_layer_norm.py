"""ReZero with layer norm."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from sixfold.core import forms
from sixfold.core.dropout import Dropout
from sixfold.core.place import Place
from sixfold.modifications.rezero import alphas
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Residual, layer_norm


class NormedReZero(Residual):
    """x ← x + α · Drop(Sublayer(Norm(x))),   α starts at 0"""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(1))
        self.norm = spec.norm(spec, place)
        self.dropout = Dropout(spec.sizes.dropout)

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.alpha * self.dropout(y)

    def form(self) -> forms.PreNormForm:
        return forms.PreNormForm(self.norm, gain=self.alpha)


@modification("2003.04887", adds=alphas)
def rezero_layer_norm(spec: Spec) -> Spec:
    """ReZero with layer norms kept, before each sub-layer and at the end.

        x ← x + α · Drop(Sublayer(LayerNorm(x))),   α starts at 0

    With all α = 1 it is the plain Transformer. Parameters: 1 for each sub-layer.
    """
    return replace(spec, residual=NormedReZero, norm=partial(layer_norm))  # `partial` marks the slot as set
