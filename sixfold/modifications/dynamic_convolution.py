"""Dynamic convolution."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from sixfold.core.init import Glorot, declare, linear
from sixfold.core.place import Place, Sizes
from sixfold.modifications._shared.convolution import (
    GatedConvolution,
    check_widths,
    convolve_each,
    gated_parameters,
    width_at,
)
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


class DynamicConvolution(GatedConvolution):
    """LightweightConvolution with W_t = u_t W^Q: each token computes its own kernels."""

    def __init__(self, spec: Spec, place: Place, widths: tuple[int, ...], shared: int):
        super().__init__(spec, place, width_at(widths, place), shared or spec.sizes.heads)
        self.to_logits = linear(spec.sizes.d_model, self.width * self.heads, bias=False)  # W^Q
        declare(self.to_logits.weight, Glorot())

    def kernel(self, u: Tensor) -> Tensor:
        return kernels_of_tokens(self.to_logits(u), self.heads)

    def convolve(self, reached: Tensor, kernel: Tensor) -> Tensor:
        return convolve_each(reached, kernel)


def kernels_of_tokens(logits: Tensor, kernels: int) -> Tensor:
    """(B, L, w·H) → (B, L, w, H): the taps of each kernel sum to one."""
    return logits.unflatten(-1, (-1, kernels)).softmax(-2)


def added(sizes: Sizes, widths: tuple[int, ...] = (3, 7, 15, 31), shared: int = 0) -> int:
    return gated_parameters(sizes, widths, lambda w: sizes.d_model * w * (shared or sizes.heads))


@modification("1901.10430", adds=added, most={"widths": 1_000, "shared": 65_536})
def dynamic_convolution(spec: Spec, *, widths: tuple[int, ...] = (3, 7, 15, 31), shared: int = 0) -> Spec:
    """Self-attention becomes a convolution whose kernels each token computes for itself.

        u = (x W_a) ⊙ σ(x W_b)
        y_tc = Σ_j softmax_j(u_t W^Q_h) · u_(t+j−j₀),c     c in the h-th of H groups of neighbouring channels
        output = y W_O

    The page of `lightweight_convolution` explains windows, `widths` and `shared`. Here the weights depend on
    the token itself, but not, as in attention, on its neighbours. Taps beyond the ends of the text weigh zeros,
    so near the ends the weights of real tokens do not sum to one.
    Parameters: 3·d² + d·H·w in place of each self-attention's 4·d·heads·d_head.
    """
    check_widths("dynamic_convolution", spec.sizes, widths, shared)
    return replace(spec, attention=partial(DynamicConvolution, widths=widths, shared=shared))
