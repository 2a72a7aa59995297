"""Tensors of which each process holds a shard (torch's DTensor): gathered, or sharded like another.

Where nothing is sharded, these functions do nothing, and torch.distributed.tensor, whose import takes most of a
second, is never imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_cut(tensor: Tensor | None) -> TypeGuard[DTensor]:
    """Whether this is a DTensor. None exists before torch.distributed.tensor is imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """The full tensor. A collective call: every process must make it."""
    return tensor.full_tensor() if is_cut(tensor) else tensor


def whole_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: whole(tensor) for name, tensor in tensors.items()}


def like(weight: Tensor, tensor: Tensor) -> Tensor:
    """A tensor on the device of a weight, sharded like it. Every process must hold the full tensor: nothing is sent."""
    tensor = tensor.to(weight.device)
    if is_cut(weight) and not is_cut(tensor):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor, weight.device_mesh, weight.placements, src_data_rank=None)
    return tensor


def cut(tensor: Tensor, pattern: Tensor | None) -> Tensor:
    """The tensor, sharded like the pattern if the pattern is sharded and has the same shape."""
    return like(pattern, tensor) if is_cut(pattern) and pattern.shape == tensor.shape else tensor
