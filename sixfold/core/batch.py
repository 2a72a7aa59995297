"""What a training step reads, and what it minimises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """What a training step reads. Ids; PAD fills up rows, and stands where a target is not scored."""

    source: Any = None  # (S, n): read by an encoder
    inputs: Any = None  # (B, L): read by a decoder
    targets: Any = None  # (B, L): what is right after each input; (S, n) or classes (S,) without a decoder

    def to(self, device: torch.device) -> Batch:
        return Batch(*(None if t is None else t.to(device) for t in (self.source, self.inputs, self.targets)))


class Losses(NamedTuple):
    """Sums, so that micro-batches and processes add up to one batch."""

    sum: Tensor  # Σ −log p over the scored targets
    tokens: Tensor  # how many these are
    auxiliary: Tensor  # what parts add to be minimised, such as the balance of experts
    plain: Tensor  # Σ −log p without smoothing: what is reported; it has no gradient
