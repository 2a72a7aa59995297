"""Gated feed-forward layers: the gated linear unit and its variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sixfold.core import forms
from sixfold.core.call import Call
from sixfold.core.init import linear, truncated
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.modifications.activations import gelu
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


class Gated(ModelPart):
    """(φ(x W_a + b_a) ⊙ (x W_b + b_b)) W₂ + b₂ at every position alike."""

    def __init__(self, spec: Spec, place: Place, gate: Callable[[Tensor], Tensor]):
        super().__init__()
        self.inner = linear(spec.sizes.d_model, 2 * spec.sizes.d_ff, truncated)  # W_a, W_b side by side
        self.outer = linear(spec.sizes.d_ff, spec.sizes.d_model, truncated)  # W₂
        self.gate = gate  # φ

    def forward(self, x: Tensor, call: Call) -> Tensor:
        a_BLF, b_BLF = self.inner(x).chunk(2, dim=-1)
        return self.outer(self.gate(a_BLF) * b_BLF)

    def form(self) -> forms.FeedForwardForm:
        return forms.FeedForwardForm(self.inner, self.outer, self.gate, gated=True)


def itself(a: Tensor) -> Tensor:
    return a


def added(sizes: Sizes, form: str = "") -> int:
    """W_b and b_b in every layer."""
    return (sizes.encoder_layers + sizes.decoder_layers) * (sizes.d_model * sizes.d_ff + sizes.d_ff)


@modification("1612.08083", adds=added)
def glu(spec: Spec) -> Spec:
    """The gated linear unit: a sigmoid of one half of the inner layer opens and closes the other half.

        FFN(x) = (σ(x W_a + b_a) ⊙ (x W_b + b_b)) W₂ + b₂

    It and its variants have three matrices where the plain layer has two. `d_ff` is the width of each half:
    two thirds of the plain one keeps the number of weights, as the papers do (3072 → 2048).
    Parameters: d_model · d_ff + d_ff more in each layer.
    """
    return replace(spec, feed_forward=partial(Gated, gate=torch.sigmoid))


@modification("2002.05202", adds=added)
def geglu(spec: Spec, *, form: Literal["erf", "tanh"] = "erf") -> Spec:
    """A gated feed-forward whose gate is a GELU.

        FFN(x) = (GELU(x W_a + b_a) ⊙ (x W_b + b_b)) W₂ + b₂

    For the width see glu, for the two forms gelu. Parameters: d_model · d_ff + d_ff more in each layer.
    """
    return replace(spec, feed_forward=partial(Gated, gate=gelu(spec, form=form).activation))


@modification("2002.05202", adds=added)
def reglu(spec: Spec) -> Spec:
    """A gated feed-forward whose gate is a relu.

        FFN(x) = (relu(x W_a + b_a) ⊙ (x W_b + b_b)) W₂ + b₂

    For the width see glu. Parameters: d_model · d_ff + d_ff more in each layer.
    """
    return replace(spec, feed_forward=partial(Gated, gate=F.relu))


@modification("2002.05202", adds=added)
def swiglu(spec: Spec) -> Spec:
    """A gated feed-forward whose gate is a Swish.

        FFN(x) = (Swish(x W_a + b_a) ⊙ (x W_b + b_b)) W₂ + b₂,   Swish(a) = a σ(a)

    For the width see glu. Parameters: d_model · d_ff + d_ff more in each layer.
    """
    return replace(spec, feed_forward=partial(Gated, gate=F.silu))


@modification("2002.05202", adds=added)
def liglu(spec: Spec) -> Spec:
    """A gated feed-forward without any function: the product of two linear maps.

        FFN(x) = ((x W_a + b_a) ⊙ (x W_b + b_b)) W₂ + b₂

    The product alone makes it non-linear; it needs no activation. For the width see glu.
    Parameters: d_model · d_ff + d_ff more in each layer.
    """
    return replace(spec, feed_forward=partial(Gated, gate=itself))
