"""The best of many words."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sixfold import kernels


class Top(NamedTuple):
    """The best words, the best first."""

    values: Tensor  # (…, k)
    indices: Tensor  # (…, k)


def top(scores: Tensor, k: int) -> Top:
    """The k largest of (…, V), V ≥ k. Of equal ones, any; but for k = 1, the first. −∞ may stand for any word."""
    if scores.device.type != "cpu" or scores.dtype != torch.float32:
        return Top(*(scores.max(-1, keepdim=True) if k == 1 else scores.topk(k)))
    rows = scores.detach().contiguous().view(-1, scores.shape[-1])
    values, indices = rows.new_empty(len(rows), k), torch.empty(len(rows), k, dtype=torch.long)
    kernels.top(rows.numpy(), values.numpy(), indices.numpy())
    return Top(values.view(*scores.shape[:-1], k), indices.view(*scores.shape[:-1], k))
