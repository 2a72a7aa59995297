"""Fixup: an initialisation that replaces norms."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from sixfold.core.call import Call
from sixfold.core.dropout import Dropout
from sixfold.core.init import Truncated, declare, linear
from sixfold.core.place import Place, Sizes
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Attention, CrossAttention, Residual


class FixupResidual(Residual):
    """x ← x + Drop(s · Sublayer(x + b)), with learned scalars s, b that start at 1 and 0"""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.place = place
        self.scale, self.shift = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))
        self.dropout = Dropout(spec.sizes.dropout)

    def before(self, x: Tensor) -> Tensor:
        return x + self.shift

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.dropout(self.scale * y)


class FixupFeedForward(nn.Module):
    """(φ(x W₁) + b) W₂, with a learned scalar b"""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.inner = linear(spec.sizes.d_model, spec.sizes.d_ff, bias=False)
        self.outer = linear(spec.sizes.d_ff, spec.sizes.d_model, bias=False)
        self.activation, self.shift = spec.activation, nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, call: Call) -> Tensor:
        return self.outer(self.activation(self.inner(x)) + self.shift)


class FixupEnd(nn.Module):
    """s · (x + b) after an encoder; x + b after a causal stack, whose logits have their own scale"""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))
        self.scale = None if place.causal else nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift if self.scale is None else self.scale * (x + self.shift)


def begin(model: nn.Module, spec: Spec, *, but_for: tuple[type[nn.Module], ...] = ()) -> None:
    """Initialise so that each branch outputs 0 and its inner matrices shrink with the number of branches.

    A shared layer counts once per application. Branches of a type in `but_for` keep their usual initialisation.
    """
    around = [part.place for part in model.modules() if isinstance(part, FixupResidual)]
    branches = sum(layers for _, _, layers in {(place.stack, place.name, place.layers) for place in around})
    known = [part for part in model.modules() if _knows(part)]
    if len(known) != len(around):
        raise ValueError(
            f"fixup can't initialise every branch: it recognises {len(known)} of {len(around)} (plain attention and "
            f"its own feed-forward); leave out the modification that fills attention, cross or a layer"
        )
    for part in known:
        if isinstance(part, but_for):
            continue
        if isinstance(part, FixupFeedForward):
            _begin(part.outer, part.inner, factor=branches ** (-1 / 2))
        elif isinstance(part, Attention):
            _begin(part.output, part.qkv, factor=branches ** (-1 / 6))
        elif isinstance(part, CrossAttention):
            _begin(part.output, part.q, part.kv, factor=branches ** (-1 / 6))


def _knows(part: nn.Module) -> bool:
    """Whether it is a complete branch: an attention inside another part may lack its last matrix."""
    attention = isinstance(part, Attention | CrossAttention) and isinstance(part.output, nn.Linear)
    return attention or isinstance(part, FixupFeedForward)


def _begin(last: nn.Linear, *others: nn.Linear, factor: float) -> None:
    nn.init.zeros_(last.weight)
    for matrix in others:
        std = (2 / matrix.in_features) ** 0.5 * factor  # the factor is on the deviation, not the variance
        declare(matrix.weight, Truncated(std))


def added(sizes: Sizes) -> int:
    layers = sizes.encoder_layers + sizes.decoder_layers
    branches = 2 * sizes.encoder_layers + 3 * sizes.decoder_layers
    norms, biases = (branches + 2) * 2 * sizes.d_model, layers * (sizes.d_model + sizes.d_ff)
    return 2 * branches + layers + 3 - norms - biases


@modification("1901.09321", adds=added)
def fixup(spec: Spec) -> Spec:
    """No norms: learned scalars shift and scale, and weights start smaller the deeper the model.

        x ← x + Drop(s · Sublayer(x + b)),   FFN(x) = (φ(x W₁) + b) W₂

    With ℓ branches in the model, and m matrices in a branch, the last matrix of the branch (W_O, W₂)
    starts at 0 and the others at ℓ^(−1/(2m−2)) times He's initialisation N(0, 2/n_in): ℓ^(−1/6) in attention
    (m = 4), ℓ^(−1/2) in the feed-forward (m = 2). So each stack starts as the identity, and an optimiser step
    changes the output equally at any depth. As with rezero, a shared table makes the first loss about √D
    (the paper's softmax layer starts at zero, which a table shared with the input can't).
    Parameters: 2 for each sub-layer, 1 for each feed-forward, 3 at the ends; no norms and biases.
    """
    return replace(spec, residual=FixupResidual, final=FixupEnd, feed_forward=FixupFeedForward, init=begin)
