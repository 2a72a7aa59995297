"""A model directory: `model.json` says what the model is, `model.safetensors` holds its weights.

Nothing in it is ever executed or unpickled. Each tensor is stored once; what is shared is shared again
because the model is made anew from its description.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

import sixfold
from sixfold.models import Model, build
from sixfold.registry import Chosen
from sixfold.spec import Sizes

FORMAT = "sixfold-model-1"
DESCRIPTION, WEIGHTS = "model.json", "model.safetensors"
_LARGEST_DESCRIPTION = 1 << 20  # bytes


def describe(model: Model) -> dict[str, Any]:
    """What `model.json` says."""
    return {
        "format": FORMAT,
        "model": model.kind,
        "sizes": asdict(model.sizes),
        "modifications": [{chosen.name: dict(chosen.options)} for chosen in model.assembly.modifications],
        "limits": model.limits,
        "versions": {"sixfold": sixfold.__version__, "torch": torch.__version__},
    }


def save(model: Model, directory: str | Path, *, overwrite: bool = False) -> None:
    """Write a model directory. An existing one is only replaced if `overwrite`."""
    directory = Path(directory)
    if (directory / DESCRIPTION).exists() and not overwrite:
        raise ValueError(f"{directory} holds a model already; say overwrite=True to replace it")
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    description = json.dumps(describe(model), indent=2)
    write_aside(directory / WEIGHTS, lambda path: safetensors.torch.save_file(tensors, path, {"format": FORMAT}))
    write_aside(directory / DESCRIPTION, lambda path: path.write_text(description + "\n", encoding="utf-8"))


def write_aside(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file beside its place, bring it to disk, then move it there: it is there whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    aside = Path(name)
    try:
        write(aside)
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        aside.chmod(0o666 & ~_umask())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def load(directory: str | Path, *, device: torch.device | str = "cpu") -> Model:
    """Read a model directory. Its names and shapes are compared before memory is taken."""
    directory = Path(directory)
    model = _from_description(_read_description(directory / DESCRIPTION), directory)
    path = directory / WEIGHTS
    if not path.is_file():
        raise ValueError(f"{directory} has no {WEIGHTS}: the model is not complete")
    try:
        with safetensors.safe_open(path, framework="pt", device=str(device)) as file:
            names = file.keys()
            _compare({name: tuple(file.get_slice(name).get_shape()) for name in names}, model, path)
            model.load_state_dict({name: file.get_tensor(name) for name in names}, assign=True)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    assert not any(t.is_meta for t in [*model.parameters(), *model.buffers()]), (
        "a part holds a tensor that is not saved"
    )
    return model.eval()


def _read_description(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path.parent} is not a model directory: it has no {path.name}")
    if path.stat().st_size > _LARGEST_DESCRIPTION:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes: that is no model description")
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        found = description.get("format") if isinstance(description, dict) else type(description).__name__
        raise ValueError(f"{path} has format {found!r}; this version of sixfold reads {FORMAT!r}")
    return description


def _from_description(description: Mapping[str, Any], directory: Path) -> Model:
    """The model without memory for its weights."""
    try:
        sizes = Sizes(**description["sizes"])
        wishes = [Chosen(name, options) for wish in description["modifications"] for name, options in wish.items()]
        return build(sizes, wishes, description["model"], device="meta")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{directory / DESCRIPTION} is incomplete or damaged: {error}") from None
    except ValueError as error:
        raise ValueError(
            f"{directory / DESCRIPTION}: {error} (a modification of your own must be imported first: "
            f"sixfold.import_file, or --import on the command line)"
        ) from None


def _compare(stored: Mapping[str, tuple[int, ...]], model: Model, path: Path) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in wanted.keys() | stored.keys():
        if name not in stored:
            raise ValueError(f"{path} lacks {name}, which {DESCRIPTION} asks for")
        if name not in wanted:
            raise ValueError(f"{path} has {name}, which {DESCRIPTION} does not know")
        if wanted[name] != stored[name]:
            raise ValueError(f"{path}: {name} has shape {stored[name]}, but {DESCRIPTION} asks for {wanted[name]}")
