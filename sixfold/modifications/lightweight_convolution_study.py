"""Lightweight convolution, as Narang et al. (2021) ran it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from sixfold.core.init import Truncated, parameter
from sixfold.core.place import Place, Sizes
from sixfold.modifications._shared.convolution import STUDY_WIDTH, StudyConvolution, convolve, study_parameters
from sixfold.modifications.lightweight_convolution import kernels_everywhere
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


class StudyLightweightConvolution(StudyConvolution):
    """One kernel for each channel, the same everywhere in the text."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__(spec, place)
        self.logits = parameter((self.heads, self.width), Truncated(1 / 3))  # W

    def kernel(self, u: Tensor) -> Tensor:
        return kernels_everywhere(self.logits)

    def convolve(self, reached: Tensor, kernel: Tensor) -> Tensor:
        return convolve(reached, kernel[0, 0].T) + self.bias


def added(sizes: Sizes) -> int:
    return study_parameters(sizes, STUDY_WIDTH * sizes.d_model)


@modification("2102.11972", adds=added)
def lightweight_convolution_study(spec: Spec) -> Spec:
    """`lightweight_convolution` as Narang et al. (2021) ran it: a kernel of width 9 for each channel.

        u = (x W_a + a) ⊙ σ(x W_b + b)
        y_tc = Σ_j softmax_j(W_c) · u_(t+j−j₀),c + bias_c
        output = (y V + v) W_O + o

    The kernel has no dropout. Parameters: 4·d² + 14·d in place of each self-attention's 4·d·heads·d_head.
    """
    return replace(spec, attention=StudyLightweightConvolution)
