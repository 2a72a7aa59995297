"""The k largest scores."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sixfold.decoding.cpu import kernels


class Top(NamedTuple):
    """The k largest scores and their indices, the largest first."""

    values: Tensor  # (…, k)
    indices: Tensor  # (…, k)


def top(scores: Tensor, k: int) -> Top:
    """The k largest of (…, V), V ≥ k.

    Of equal scores any may be chosen; for k = 1 it is the first. The index of a −∞ is arbitrary.
    """
    if scores.device.type != "cpu" or scores.dtype != torch.float32:
        return Top(*(scores.max(-1, keepdim=True) if k == 1 else scores.topk(k)))
    rows = scores.numpy(force=True).reshape(-1, scores.shape[-1])
    values, indices = np.empty((len(rows), k), np.float32), np.empty((len(rows), k), np.int64)
    kernels.top(rows, values, indices)
    shape = (*scores.shape[:-1], k)
    return Top(torch.from_numpy(values.reshape(shape)), torch.from_numpy(indices.reshape(shape)))
