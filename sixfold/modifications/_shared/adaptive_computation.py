"""Adaptive computation time: each position decides for itself how many steps it takes (arXiv 1603.08983)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from sixfold.core.call import Call
from sixfold.core.init import linear
from sixfold.core.parts import ModelPart
from sixfold.spec.spec import Spec

EPSILON, COST = 0.01, 0.01


class Pondered(NamedTuple):
    """The sums over the steps so far."""

    total: Tensor  # (B, L, 1) Σ weight_t: 1 where it has halted
    mean: Tensor  # (B, L, D) Σ weight_t · h_t
    steps: Tensor  # (B, L, 1) N + R: the number of steps, plus the weight of the last

    @classmethod
    def nothing(cls, x: Tensor) -> Pondered:
        zeros = x.new_zeros(*x.shape[:2], 1, dtype=torch.promote_types(x.dtype, torch.float32))
        return cls(zeros, torch.zeros_like(x), zeros)

    def loss(self, call: Call) -> Tensor:
        """0.01 · (N + R), averaged over the tokens that are not padding."""
        if call.real is None:
            return COST * self.steps.mean()
        return COST * (self.steps[..., 0] * call.real).sum() / call.real.sum().clamp(min=1)


class Halting(ModelPart):
    """p_t = σ(w·x_t + b), summed until Σ p > 1 − ε, or the steps end.

    weight_t = p_t, except for the last step, whose weight completes the sum to 1.
    """

    batch_dependent = True  # its loss is a mean over the batch

    def __init__(self, spec: Spec, steps: int):
        super().__init__()
        if steps < 2:
            raise ValueError(f"halting needs 2 steps or more to choose from, got {steps}")
        self.gate = linear(spec.sizes.d_model, 1)
        nn.init.ones_(self.gate.bias)

    def forward(self, x: Tensor, new: Tensor, before: Pondered, last: bool) -> tuple[Tensor, Pondered]:
        """After the step from x to `new`: which positions took it (B, L, 1), and the new sums."""
        p = self.gate(x).to(before.total.dtype).sigmoid()
        running = before.total <= 1 - EPSILON
        halts = running if last else running & (before.total + p > 1 - EPSILON)
        weight = torch.where(halts, 1 - before.total, p) * running
        mean = before.mean + weight.to(new.dtype) * new
        return running, Pondered(before.total + weight, mean, before.steps + running + halts * weight)
