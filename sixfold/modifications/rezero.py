"""ReZero: residual branches scaled by a number that starts at 0."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from sixfold.core.dropout import Dropout
from sixfold.core.place import Place, Sizes
from sixfold.modifications.post_norm import no_norm
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Residual


class ReZero(Residual):
    """x ← x + α · Drop(Sublayer(x)),   α starts at 0"""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(1))
        self.dropout = Dropout(spec.sizes.dropout)

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.alpha * self.dropout(y)


def alphas(sizes: Sizes) -> int:
    """The number of α: one for each sub-layer."""
    return 2 * sizes.encoder_layers + 3 * sizes.decoder_layers


def norms(sizes: Sizes) -> int:
    """The number of norms in the plain encoder-decoder: one for each sub-layer, and two at the ends."""
    return alphas(sizes) + 2


@modification("2003.04887", adds=lambda sizes: alphas(sizes) - norms(sizes) * 2 * sizes.d_model)
def rezero(spec: Spec) -> Spec:
    """Each sub-layer's output is scaled by one learned number that starts at 0; there are no norms.

        x ← x + α · Drop(Sublayer(x)),   α starts at 0

    So a stack starts as the identity at any depth, and each sub-layer gains influence as far as it helps. At the
    first step only the decoder's α have a gradient, at the second also its weights and the encoder's α, then
    all. If one table serves as the decoder's input and as the softmax, the identity predicts the word just
    read: its logit is √D, and with a large D the first loss is nearer to √D than to ln V.
    As in Narang et al. (2021), each sub-layer has its own α (the authors' code has one for a layer).
    Parameters: 1 for each sub-layer; no norms.
    """
    return replace(spec, residual=ReZero, final=no_norm)
