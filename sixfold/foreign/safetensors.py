"""The weights of a model alone, for programs that build the model themselves: model.safetensors.

Each tensor is stored once, under its name in the model. export.json has the role of each table, the sizes, the
modifications and the tokenizers.
"""

from __future__ import annotations

import errno
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from sixfold.disk.atomic import StagedFiles, save_tensors
from sixfold.models.model import Model

WEIGHTS = "model.safetensors"


def write(model: Model, folder: Path) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with StagedFiles(folder) as staging:
        staging.write(WEIGHTS, lambda path: save_tensors(tensors, path))
    stored = safetensors.torch.load_file(folder / WEIGHTS)
    if stored.keys() != tensors.keys() or not all(_same(stored[name], tensor) for name, tensor in tensors.items()):
        raise OSError(errno.EIO, f"{WEIGHTS} was damaged while it was written: reading it gives other weights")


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal byte by byte, so that a NaN equals itself."""
    alike = (a.shape, a.dtype) == (b.shape, b.dtype)
    return alike and torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8))


def roles(model: Model) -> dict[str, str]:
    """The name of the table of each role (source, target, output) in model.safetensors."""
    place = {id(table): f"tables.{number}" for number, table in enumerate(model.tables)}
    return {role: place[id(table)] for role, table in model.roles.items()}
