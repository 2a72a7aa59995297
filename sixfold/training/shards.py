"""Tensors of which each process holds a part: made whole, cut up like others, written and read.

Where nothing is cut up, all of this does nothing, and what torch needs for it, which takes most of a second, is never
imported.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_cut(tensor: Tensor | None) -> TypeGuard[DTensor]:
    """Whether processes have parts of it only. Before the module is imported that cuts them up, there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """A tensor in full. All processes must ask."""
    return tensor.full_tensor() if is_cut(tensor) else tensor


def whole_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: whole(tensor) for name, tensor in tensors.items()}


def like(weight: Tensor, tensor: Tensor) -> Tensor:
    """A tensor on the device of a weight, and cut up as it is. Each process must have all of it: nothing is sent."""
    tensor = tensor.to(weight.device)
    if is_cut(weight) and not is_cut(tensor):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor, weight.device_mesh, weight.placements, src_data_rank=None)
    return tensor


def cut(tensor: Tensor, pattern: Tensor | None) -> Tensor:
    """The same tensor, cut up as the pattern is, if it is and has its shape."""
    return like(pattern, tensor) if is_cut(pattern) and pattern.shape == tensor.shape else tensor


def write(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Each process writes its parts into a safetensors file of its own; there is no other file. All must call.

    Who writes what, torch's processes tell each other by pickles. These go from memory to memory, never to disk.
    """
    from torch.distributed import checkpoint as dcp

    try:
        dcp.save(dict(tensors), storage_writer=dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except dcp.CheckpointException as failed:  # on every process, whichever it happened on
        reasons = [reason for reason, _ in failed.failures.values()]
        raise next((r for r in reasons if isinstance(r, OSError)), RuntimeError(str(failed))) from None


def read(folder: Path, pattern: Callable[[str], Tensor | None]) -> dict[str, Tensor]:
    """What any number of processes wrote: whole, but what has a pattern that is cut up is so, too.

    Of that each process reads its own parts only. Nobody waits for another.
    """
    from torch.distributed import checkpoint as dcp

    reader = dcp.HuggingFaceStorageReader(str(folder))
    stored: dict[str, Any] = reader.read_metadata().state_dict_metadata
    tensors = {name: _room(about.size, about.properties.dtype, pattern(name)) for name, about in stored.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def _room(size: torch.Size, dtype: torch.dtype, pattern: Tensor | None) -> Tensor:
    if is_cut(pattern) and pattern.shape == size:
        return torch.empty_like(pattern, dtype=dtype)
    return torch.empty(size, dtype=dtype)
