"""A model as its weights alone, for programs that build it themselves: model.safetensors.

Each tensor is there once, under the name it has in the model; which table serves which role stands in export.json,
beside the sizes, the modifications and the tokenizers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from sixfold.files import Aside, save_tensors
from sixfold.models import Model

WEIGHTS = "model.safetensors"


def write(model: Model, folder: Path) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with Aside(folder) as aside:
        aside.write(WEIGHTS, lambda path: save_tensors(tensors, path))
    stored = safetensors.torch.load_file(folder / WEIGHTS)
    assert stored.keys() == tensors.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in tensors.items()), (
        "what was written is not the model"
    )


def roles(model: Model) -> dict[str, str]:
    """Which of the tables in model.safetensors reads the source, reads the target, and writes."""
    place = {id(table): f"tables.{number}" for number, table in enumerate(model.tables)}
    tables: dict[str, Any] = model._table
    return {role: place[id(table)] for role, table in tables.items()}
