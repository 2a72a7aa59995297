"""Lightweight convolution."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from sixfold.core.place import Place, Sizes
from sixfold.modifications._shared.convolution import GatedConvolution, check_widths, convolve, gated_parameters
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


class LightweightConvolution(GatedConvolution):
    """y_tc = Σ_j softmax_j(W_h) u_(t+j−j₀),c for the channels c of kernel h, between a GLU and an output matrix."""

    def __init__(self, spec: Spec, place: Place, widths: tuple[int, ...], shared: int, study: bool):
        super().__init__(spec, place, widths, shared, study)
        self.logits = nn.Parameter(torch.empty(self.heads, self.width))  # W
        if study:
            nn.init.trunc_normal_(self.logits, std=1 / 3, a=-2 / 3, b=2 / 3)
        else:
            nn.init.xavier_uniform_(self.logits)

    def kernel(self, u: Tensor) -> Tensor:
        return self.logits.softmax(-1).T[None, None]

    def convolve(self, reached: Tensor, kernel: Tensor) -> Tensor:
        return convolve(reached, kernel[0, 0].T.repeat_interleave(reached.shape[2] // self.heads, 0))


def added(sizes: Sizes, widths: tuple[int, ...] = (3, 7, 15, 31), shared: int = 0, study: bool = False) -> int:
    return gated_parameters(sizes, widths, study, lambda w: w * (sizes.d_model if study else shared or sizes.heads))


@modification("1901.10430", adds=added)
def lightweight_convolution(
    spec: Spec, *, widths: tuple[int, ...] = (3, 7, 15, 31), shared: int = 0, study: bool = False
) -> Spec:
    """Self-attention becomes a convolution whose few kernels are softmaxes, the same everywhere in the text.

        u = (x W_a) ⊙ σ(x W_b)
        y_tc = Σ_j softmax_j(W_h) · u_(t+j−j₀),c     c in the h-th of H groups of neighbouring channels
        output = y W_O

    A window of w tokens has its own token in the middle (encoder) or at its end (decoder); padding counts
    as zero. Layer i has the i-th of `widths`, layers beyond the last have the last: 3/7/15/31 is the
    paper's. There are `shared` kernels (H), by default as many as heads. In training whole taps drop out.
    Cross-attention stays. Nothing in it asks for positions: only those added to the embeddings act.

    `study`: width 9, a kernel of its own for each channel, biases, and one more map d → d before W_O;
    `widths` and `shared` then say nothing.
    Parameters: 3·d² + H·w for each self-attention's 4·d·heads·d_head; `study`: 4·d² + 14·d.
    """
    check_widths("lightweight_convolution", spec.sizes, widths, spec.sizes.d_model if study else shared)
    return replace(spec, attention=partial(LightweightConvolution, widths=widths, shared=shared, study=study))
