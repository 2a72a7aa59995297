"""Dynamic convolution, as Narang et al. (2021) ran it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from sixfold.core.init import linear, truncated
from sixfold.core.place import Place, Sizes
from sixfold.modifications._shared.convolution import STUDY_WIDTH, StudyConvolution, convolve_each, study_parameters
from sixfold.modifications.dynamic_convolution import kernels_of_tokens
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


class StudyDynamicConvolution(StudyConvolution):
    """W_t = u_t W^Q + b: each token computes a kernel for each channel."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__(spec, place)
        self.to_logits = linear(spec.sizes.d_model, self.width * self.heads, truncated)  # W^Q

    def kernel(self, u: Tensor) -> Tensor:
        return kernels_of_tokens(self.to_logits(u), self.heads)

    def convolve(self, reached: Tensor, kernel: Tensor) -> Tensor:
        return convolve_each(reached, kernel) + self.bias


def added(sizes: Sizes) -> int:
    return study_parameters(sizes, (sizes.d_model + 1) * STUDY_WIDTH * sizes.d_model)


@modification("2102.11972", adds=added)
def dynamic_convolution_study(spec: Spec) -> Spec:
    """`dynamic_convolution` as Narang et al. (2021) ran it: a kernel of width 9 for each channel.

        u = (x W_a + a) ⊙ σ(x W_b + b)
        y_tc = Σ_j softmax_j(u_t W^Q_c + b_c) · u_(t+j−j₀),c + bias_c
        output = (y V + v) W_O + o

    Taps have no dropout. The matrices have 13·d² weights; to make up for them, Narang et al. cut the feed-forward
    width from 3072 to 512.
    Parameters: 13·d² + 14·d in place of each self-attention's 4·d·heads·d_head.
    """
    return replace(spec, attention=StudyDynamicConvolution)
