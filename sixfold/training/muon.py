"""Muon: momentum whose update of each matrix is made orthogonal, so that all its directions move equally far.

    b ← β·b + (1 − β)·g      u = β·b + (1 − β)·g      W ← (1 − ηλ)·W − 0.2·η·√max(m, n) · UVᵀ,  where u = UΣVᵀ

The factor 0.2·√max(m, n) gives the update the root mean square of AdamW's (arXiv:2502.16982), so that one learning
rate suits both. UVᵀ is approximated by polynomials that take all singular values near to 1.

torch.optim.Muon takes five equal polynomials and computes in bfloat16, one matrix at a time. On a CPU without bfloat16
instructions that takes ten times as long as float32. Here a CPU uses float32, matrices of the same shape are one batch,
and three different polynomials come as near as the five.

Letters: N matrices of m × n, m ≤ n.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sixfold.core.sharded_tensors import like, whole

# Coefficients of x, x³ and x⁵. Each polynomial is the one nearest to 1 on the interval that the one before it leaves
# (arXiv:2505.16932); the first interval is [0.01, 1], the last image [0.73, 1.27].
_POLYNOMIALS = ((8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))
_RMS = 0.2  # root mean square of AdamW's update per learning rate


class Muon(Optimizer):
    """Muon for matrices; all other parameters need another optimiser."""

    def __init__(
        self, params: Iterable[dict[str, Any]], lr: float = 1e-3, weight_decay: float = 0.01, momentum: float = 0.95
    ):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[weight.shape].append(weight)
            for shape, weights in by_shape.items():
                updates = orthogonal(torch.stack([whole(self._direction(w, group["momentum"])) for w in weights]))
                rate = _RMS * max(shape) ** 0.5 * group["lr"]
                for weight, update in zip(weights, updates, strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.add_(like(weight, update.to(weight.dtype)), alpha=-rate)

    def _direction(self, weight: Tensor, momentum: float) -> Tensor:
        """Nesterov's momentum of a weight's gradient."""
        assert weight.grad is not None
        state = self.state[weight]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight.grad)
        mean = state["momentum_buffer"].lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(mean, momentum)


def orthogonal(matrices_Nmn: Tensor) -> Tensor:
    """About UVᵀ of each matrix UΣVᵀ: singular values become 0.73 to 1.27, except those below 0.01 of their norm."""
    if matrices_Nmn.shape[1] > matrices_Nmn.shape[2]:
        return orthogonal(matrices_Nmn.mT).mT
    x = matrices_Nmn if matrices_Nmn.device.type == "cpu" else matrices_Nmn.bfloat16()
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=1e-7)  # singular values are at most 1
    for a, b, c in _POLYNOMIALS:
        gram_Nmm = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram_Nmm, gram_Nmm, gram_Nmm, beta=b, alpha=c), x, beta=a)
    return x
