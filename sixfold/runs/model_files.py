"""A model directory: `model.json` describes the model, `model.safetensors` holds its weights.

Nothing in it is ever executed or unpickled. Each tensor is stored once; loading builds the model from its description,
which shares tensors as before.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import torch

import sixfold
from sixfold.core.machine_memory import need_memory
from sixfold.core.place import Sizes
from sixfold.core.quote import quoted
from sixfold.disk.atomic import StagedFiles, save_tensors
from sixfold.disk.reading import read_json
from sixfold.models.build import build
from sixfold.models.model import Model
from sixfold.runs import old_formats
from sixfold.spec.registry import Chosen

FORMAT = old_formats.MODEL_2
_READS = (old_formats.MODEL_1, FORMAT)
DESCRIPTION, WEIGHTS = "model.json", "model.safetensors"
_LARGEST_DESCRIPTION = 1 << 20  # bytes


def describe(model: Model) -> dict[str, Any]:
    """The content of `model.json`."""
    return {
        "format": FORMAT,
        "model": model.kind,
        "sizes": asdict(model.sizes),
        "modifications": [{chosen.name: dict(chosen.options)} for chosen in model.assembly.modifications],
        "limits": model.limits,
        "versions": {"sixfold": sixfold.__version__, "torch": torch.__version__},
    }


def save(model: Model, directory: str | Path, *, overwrite: bool = False) -> None:
    """Write a model directory. An existing one is replaced only with `overwrite`."""
    directory, model = Path(directory), getattr(model, "_orig_mod", model)  # unwraps torch.compile
    if not isinstance(model, Model):
        raise ValueError(f"only a model that sixfold built can be saved, got {type(model).__name__}")
    lost = {name for name, _ in model.named_buffers()} - model.state_dict().keys()
    if lost:
        raise ValueError(f"{min(lost)} would not be saved: a part must register its buffers as persistent")
    if (directory / DESCRIPTION).exists() and not overwrite:
        raise ValueError(f"{directory} already holds a model; give overwrite=True to replace it")
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    description = describe(model)
    text, belongs = json.dumps(description, indent=2) + "\n", {"sixfold": _fingerprint(description)}
    with StagedFiles(directory) as staging:
        staging.write(WEIGHTS, lambda path: save_tensors(tensors, path, belongs))
        staging.write(DESCRIPTION, lambda path: path.write_text(text, encoding="utf-8"))


def _fingerprint(description: Mapping[str, Any]) -> str:
    """A hash of the description, stored with the weights that belong to it."""
    made_of = [description.get(key) for key in ("model", "sizes", "modifications")]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def load(directory: str | Path, *, device: torch.device | str = "cpu") -> Model:
    """Read a model directory. Names and shapes are checked before memory is allocated."""
    directory, device = Path(directory), _device(device)
    description = _read_description(directory / DESCRIPTION)
    model = _from_description(description, directory)
    path = directory / WEIGHTS
    if not path.is_file():
        raise ValueError(f"{directory} has no {WEIGHTS}{_as_file(path)}: the model is not complete")
    try:
        with safetensors.safe_open(path, framework="pt", device=str(device)) as file:
            fingerprint = _fingerprint(description)
            if (file.metadata() or {}).get("sixfold", fingerprint) != fingerprint:
                raise ValueError(
                    f"{path} was saved with another {DESCRIPTION}: one of them was changed, or a save was interrupted"
                )
            names = file.keys()
            slices = {name: file.get_slice(name) for name in names}
            _compare({name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}, model, path)
            if device.type == "cpu":
                need_memory(model.assembly.bytes)
            # Cloned, to be aligned in memory as fresh tensors are: on some CPUs the last bit of a sum depends on it.
            model.load_state_dict({name: file.get_tensor(name).clone() for name in names}, assign=True)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    assert not any(t.is_meta for t in [*model.parameters(), *model.buffers()]), (
        "a part holds a tensor that is not saved"
    )
    return model.eval()


def skeleton(directory: str | Path) -> Model:
    """The model of a directory, without memory for its weights."""
    return _from_description(_read_description(Path(directory) / DESCRIPTION), Path(directory))


def _device(name: torch.device | str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError:
        raise ValueError(f"there is no device {name!r}; give cpu, cuda, cuda:1, mps …") from None


def _as_file(path: Path) -> str:
    """An addition to "has no NAME", for a path that exists but is not a regular file."""
    return " that is a regular file" if os.path.lexists(path) else ""


def _read_description(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path.parent} is not a model directory: it has no {path.name}{_as_file(path)}")
    if path.stat().st_size > _LARGEST_DESCRIPTION:
        raise ValueError(f"{path} has {path.stat().st_size:,} bytes, more than any model description")
    try:
        description = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(description, dict) or description.get("format") not in _READS:
        found = description.get("format") if isinstance(description, dict) else type(description).__name__
        raise ValueError(
            f"{path} has format {quoted(found)}; this version of sixfold reads {' and '.join(map(repr, _READS))}"
        )
    return description


def _from_description(description: Mapping[str, Any], directory: Path) -> Model:
    """The model without memory for its weights."""
    try:
        sizes = Sizes(**description["sizes"])
        entries = description["modifications"]
        if description["format"] == old_formats.MODEL_1:
            entries = [old_formats.modification(entry) for entry in entries]
        chosen = [Chosen(name, options) for entry in entries for name, options in entry.items()]
        return build(sizes, chosen, description["model"], device="meta")
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{directory / DESCRIPTION} is incomplete or damaged: {error}") from None
    except ValueError as error:
        raise ValueError(f"{directory / DESCRIPTION}: {error}") from None


def _compare(stored: Mapping[str, tuple[tuple[int, ...], str]], model: Model, path: Path) -> None:
    tensors = model.state_dict()
    wanted = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in wanted.keys() | stored.keys():
        if name not in stored:
            raise ValueError(f"{path} lacks {name}, which {DESCRIPTION} asks for")
        if name not in wanted:
            raise ValueError(f"{path} has {name}, which {DESCRIPTION} does not know")
        shape, dtype = stored[name]
        if wanted[name] != shape:
            raise ValueError(f"{path}: {name} has shape {shape}, but {DESCRIPTION} asks for {wanted[name]}")
        if tensors[name].is_floating_point() != dtype.startswith(("F", "BF")):
            raise ValueError(f"{path}: {name} holds {dtype}, but {DESCRIPTION} asks for {tensors[name].dtype}")
