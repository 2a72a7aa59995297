"""Transparent attention: the decoder sees every layer of the encoder.

Letters: I states of the encoder (before its first layer, and after each), J decoder layers, S rows, n source length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sixfold.core.dropout import Dropout
from sixfold.core.init import Normal, parameter
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


class Transparent(ModelPart):
    """z_j = Σ_i s_ij e_i,   s_·j = softmax_i(W_ij): one memory z_j for each decoder layer j"""

    needs_one_length = True

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        states = spec.sizes.encoder_layers + 1
        self.weight = parameter((states, place.layers), Normal(states**-0.5))  # W (I, J)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if len(states) != self.weight.shape[0] or any(state.shape != states[0].shape for state in states):
            raise ValueError(
                f"transparent_attention mixes {self.weight.shape[0]} states of one shape: the embedding, and one for "
                f"each encoder layer; this encoder outputs {len(states)}: {[tuple(state.shape) for state in states]}"
            )
        share_IJ = self.dropout(self.weight).softmax(0)
        return torch.einsum("ij,isnd->jsnd", share_IJ, torch.stack(list(states))).unbind(0)


def added(sizes: Sizes) -> int:
    return (sizes.encoder_layers + 1) * sizes.decoder_layers


@modification("1808.07561", adds=added)
def transparent_attention(spec: Spec) -> Spec:
    """Each decoder layer reads its own learned mixture of all the encoder's states.

        z_j = Σ_i s_ij e_i,   s_ij = exp(W_ij) / Σ_i' exp(W_i'j)

    e_0 is the embedding, e_i the output of encoder layer i (the complete layer, not a sub-layer), the last one
    normed; the others keep the scale that they have in the residual stream.
    So gradients reach low encoder layers directly. W starts as N(0, 1/(layers + 1)), with dropout on it.
    Parameters: (encoder_layers + 1) · decoder_layers.
    """
    return replace(spec, bridge=Transparent)
