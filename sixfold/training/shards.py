"""Sharded tensors on disk: written and read by torch.distributed.checkpoint as safetensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sixfold.core.sharded_tensors import is_cut


def write(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Each process writes its shards into its own safetensors file; there is no other file. All must call.

    torch.distributed.checkpoint exchanges its write plan between ranks by pickle, in memory only, never on disk.
    """
    from torch.distributed import checkpoint as dcp

    try:
        dcp.save(dict(tensors), storage_writer=dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except dcp.CheckpointException as failed:  # raised on every process, wherever it happened
        reasons = [reason for reason, _ in failed.failures.values()]
        raise next((r for r in reasons if isinstance(r, OSError)), RuntimeError(str(failed))) from None


def read(folder: Path, pattern: Callable[[str], Tensor | None]) -> dict[str, Tensor]:
    """The tensors that any number of processes wrote, each sharded like its pattern, or unsharded without one.

    Each process reads only its own shards, and waits for no other process.
    """
    from torch.distributed import checkpoint as dcp

    reader = dcp.HuggingFaceStorageReader(str(folder))
    stored: dict[str, Any] = reader.read_metadata().state_dict_metadata
    tensors = {name: _empty(about.size, about.properties.dtype, pattern(name)) for name, about in stored.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def _empty(size: torch.Size, dtype: torch.dtype, pattern: Tensor | None) -> Tensor:
    if is_cut(pattern) and pattern.shape == size:
        return torch.empty_like(pattern, dtype=dtype)
    return torch.empty(size, dtype=dtype)
