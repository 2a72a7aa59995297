"""Linear maps with weight normalisation (arXiv 1602.07868)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sixfold.core.init import Normal, declare, linear


class NormedLinear(nn.Module):
    """y = W x + b, where row i of W is g_i v_i / ‖v_i‖: its length g_i is learned apart from its direction v_i.

    g starts at `gain`, so an input of variance σ² gives outputs of variance gain² σ².
    """

    def __init__(self, inputs: int, outputs: int, gain: float = 1.0):
        super().__init__()
        self.v = linear(inputs, outputs, bias=False)
        declare(self.v.weight, Normal(gain * inputs**-0.5))
        self.g = nn.Parameter(torch.full((outputs,), float(gain)))
        self.b = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.v(x) * (self.g / self.v.weight.norm(dim=1)) + self.b


def normed_parameters(inputs: int, outputs: int) -> int:
    return inputs * outputs + 2 * outputs
