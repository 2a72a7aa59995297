"""Dropout that does not become the bottleneck on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 1 << 16  # 16 random bits decide whether an element is kept


class Dropout(nn.Module):
    """Set each number to zero with probability p and scale the rest by 1/(1 − p), in training only.

    On a CPU, PyTorch's own dropout draws one random number for each element, which takes longer than
    the layer norm beside it. Here one 64-bit draw serves four elements: each is kept when its 16 bits
    are not below the threshold. So p is rounded to a multiple of 1/65536, and the scale is that of
    the rounded p: the expectation is exact.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.p)
        dropped = round(self.p * _LEVELS)
        return x * _noise(x, dropped) if dropped < _LEVELS else torch.zeros_like(x)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def _noise(x: Tensor, dropped: int) -> Tensor:
    """Zeros and 1/(1 − p) in x's shape and dtype, where p = dropped / 65536."""
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device="cpu").random_(-(1 << 63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)  # uniform on −32768 … 32767
    noise = torch.ge(bits, dropped - _LEVELS // 2, out=torch.empty_like(x, memory_format=torch.contiguous_format))
    return noise.mul_(_LEVELS / (_LEVELS - dropped))
