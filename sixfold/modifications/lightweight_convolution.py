"""Lightweight convolution."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from sixfold.core.init import Glorot, parameter
from sixfold.core.place import Place, Sizes
from sixfold.modifications._shared.convolution import (
    GatedConvolution,
    check_widths,
    convolve,
    gated_parameters,
    width_at,
)
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


class LightweightConvolution(GatedConvolution):
    """y_tc = Σ_j softmax_j(W_h) u_(t+j−j₀),c for the channels c of kernel h, between a GLU and an output matrix."""

    def __init__(self, spec: Spec, place: Place, widths: tuple[int, ...], shared: int):
        super().__init__(spec, place, width_at(widths, place), shared or spec.sizes.heads)
        self.logits = parameter((self.heads, self.width), Glorot())  # W

    def kernel(self, u: Tensor) -> Tensor:
        return kernels_everywhere(self.logits)

    def convolve(self, reached: Tensor, kernel: Tensor) -> Tensor:
        return convolve(reached, kernel[0, 0].T.repeat_interleave(reached.shape[2] // self.heads, 0))


def kernels_everywhere(logits_Hw: Tensor) -> Tensor:
    """(H, w) → (1, 1, w, H): the taps of each kernel sum to one; all tokens share the kernels."""
    return logits_Hw.softmax(-1).T[None, None]


def added(sizes: Sizes, widths: tuple[int, ...] = (3, 7, 15, 31), shared: int = 0) -> int:
    return gated_parameters(sizes, widths, lambda w: w * (shared or sizes.heads))


@modification("1901.10430", adds=added, most={"widths": 1_000, "shared": 65_536})
def lightweight_convolution(spec: Spec, *, widths: tuple[int, ...] = (3, 7, 15, 31), shared: int = 0) -> Spec:
    """Self-attention becomes a convolution whose few kernels are softmaxes, the same everywhere in the text.

        u = (x W_a) ⊙ σ(x W_b)
        y_tc = Σ_j softmax_j(W_h) · u_(t+j−j₀),c     c in the h-th of H groups of neighbouring channels
        output = y W_O

    A window of w tokens has its own token in the middle (encoder) or at its end (decoder); padding counts
    as zero. Layer i has the i-th of `widths`, and layers beyond the end of the list the last one; 3/7/15/31 is
    the paper's. There are `shared` kernels (H), by default as many as heads. In training, dropout removes
    complete taps. Cross-attention is unchanged. Only positions added to the embeddings have an effect.
    Parameters: 3·d² + H·w in place of each self-attention's 4·d·heads·d_head.
    """
    check_widths("lightweight_convolution", spec.sizes, widths, shared)
    return replace(spec, attention=partial(LightweightConvolution, widths=widths, shared=shared))
