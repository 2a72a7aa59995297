"""Checkpoints: one directory `training/step-N/` with everything a run needs to continue bit for bit.

    model.safetensors       the weights in training
    optimizer.safetensors   the optimiser's state, under "PARAMETER/FIELD"
    average.safetensors     averaged weights, if training.average is set
    random.safetensors      every random generator of every process
    state.json              everything else, with a hash of each file above and of itself
    model/…, optimizer/…    instead of the files, for sharded tensors: each process writes a file with its shards

A checkpoint is staged, synced and renamed, so that it is never partly there. On reading, the hashes reveal damage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sixfold.core.quote import quoted
from sixfold.core.sharded_tensors import cut, is_cut, like
from sixfold.disk.atomic import new_directory, remove_directory, save_tensors
from sixfold.disk.hashes import file_hash, is_intact, with_hash
from sixfold.disk.reading import read_json
from sixfold.training import shards
from sixfold.training.processes import Processes, share

FORMAT = "sixfold-checkpoint-1"
Tensors = Mapping[str, Tensor]
_OF_EACH: dict[str, type] = {"step": int, "files": dict}
_OF_A_RUN: dict[str, type] = {"progress": dict, "batches": dict, "guard": dict, "log": int, "processes": int}


class DamagedError(ValueError):
    """A checkpoint that can't be used."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk that was found intact."""

    path: Path
    state: Mapping[str, Any]

    def tensors(self, name: str, weights: Tensors | None = None) -> dict[str, Tensor]:
        """A group of tensors. Those of a weight (itself, or "WEIGHT/FIELD") are sharded as it is in `weights`."""

        def pattern(key: str) -> Tensor | None:
            return (weights or {}).get(key.partition("/")[0])

        found, file, folder = {}, self.path / f"{name}.safetensors", self.path / name
        if file.name in self.state["files"]:
            found = {key: cut(t, pattern(key)) for key, t in safetensors.torch.load_file(file).items()}
        return {**found, **shards.read(folder, pattern)} if folder.exists() else found

    @property
    def step(self) -> int:
        return self.state["step"]


def write(
    directory: Path, state: Mapping[str, Any], tensors: Mapping[str, Tensors], processes: Processes | None = None
) -> None:
    """Write a checkpoint: `state` must be JSON and contain "step"; each group of tensors becomes a file.

    All processes must call this. Each writes its shards; the first one writes the other files.
    """
    processes = processes or Processes()
    with new_directory(directory) if processes.first else nullcontext(directory) as own:
        staging = own.with_name(processes.agree(own.name))
        for name, group in tensors.items():
            parts = {key: tensor for key, tensor in group.items() if is_cut(tensor)}
            rest = {key: t.detach().cpu().contiguous() for key, t in group.items() if key not in parts}
            if parts:
                shards.write(staging / name, parts)
            if processes.first and (rest or not parts):
                save_tensors(rest, staging / f"{name}.safetensors")
        hashes = processes.gather(_hashes(staging, processes))
        if processes.first:
            files = {name: digest for each in hashes for name, digest in each.items()}
            record = with_hash({"format": FORMAT, **state, "files": files})
            text = json.dumps(record, indent=2, allow_nan=False)
            (staging / "state.json").write_text(text + "\n", encoding="utf-8")


def _hashes(staging: Path, processes: Processes) -> dict[str, str]:
    """The hashes of this process's share of the files."""
    processes.wait()  # a barrier: all processes have written their files
    paths = sorted(path for path in staging.rglob("*") if path.is_file())
    return {path.relative_to(staging).as_posix(): file_hash(path) for path in share(paths, processes)}


def read(directory: Path) -> Checkpoint:
    """The checkpoint in a directory, or DamagedError with the reason."""
    state = read_state(directory)
    try:
        for name, expected in state["files"].items():
            if file_hash(directory / name) != expected:
                raise DamagedError(f"{directory / name} is damaged: it has changed since it was written")
    except OSError as error:
        raise DamagedError(f"{directory} is damaged: {error}") from None
    return Checkpoint(directory, state)


def trust(directory: Path) -> Checkpoint:
    """The checkpoint in a directory whose hashes another process has checked."""
    return Checkpoint(directory, read_state(directory))


def read_state(directory: Path) -> dict[str, Any]:
    """The content of `state.json`. Every problem with the file raises a DamagedError."""
    path = directory / "state.json"
    try:
        state = read_json(path)
    except (OSError, ValueError) as error:
        raise DamagedError(f"{directory} is damaged: {error}") from None
    if not isinstance(state, dict):
        raise DamagedError(f"{directory} is damaged: {path.name} holds a {type(state).__name__}, not an object")
    if state.get("format") != FORMAT:
        raise DamagedError(
            f"{directory} has format {quoted(state.get('format'))}; this version of sixfold reads {FORMAT!r}"
        )
    if not is_intact(state):
        raise DamagedError(f"{path} is damaged: it has changed since it was written")
    _need(directory, state, _OF_EACH)
    return state


def _need(directory: Path, state: Mapping[str, Any], keys: Mapping[str, type]) -> None:
    for key, kind in keys.items():
        if not isinstance(state.get(key), kind):
            raise DamagedError(f"{directory} is damaged: state.json has no {key!r} of type {kind.__name__}")


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of a run, the last first."""
    found = {path: path.name.removeprefix("step-") for path in folder.glob("step-*")}
    return sorted((p for p, number in found.items() if number.isdecimal()), key=lambda p: -int(found[p]))


def step_of(directory: Path) -> int:
    return int(directory.name.removeprefix("step-"))


def latest(folder: Path) -> Iterator[Checkpoint | DamagedError]:
    """From the last checkpoint backwards: an error for each damaged one, and finally an intact one to resume from."""
    for directory in checkpoints_in(folder):
        try:
            found = read(directory)
            _need(directory, found.state, _OF_A_RUN)
            yield found
            return
        except DamagedError as damage:
            yield damage


def states(folder: Path) -> Iterator[dict[str, Any]]:
    """The state.json of each checkpoint, the last first; damaged ones are left out."""
    for directory in checkpoints_in(folder):
        with suppress(DamagedError):
            yield read_state(directory)


def prune(folder: Path, keep: Iterable[int]) -> None:
    """Delete all checkpoints but those of these steps."""
    wanted = {f"step-{step}" for step in keep}
    for directory in checkpoints_in(folder):
        if directory.name not in wanted:
            remove_directory(directory)


def optimizer_tensors(model: nn.Module, optimizers: Iterable[Optimizer]) -> dict[str, Tensor]:
    """The optimisers' state of each parameter, under "PARAMETER/FIELD"."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors = {}
    for optimizer in optimizers:
        for parameter, fields in optimizer.state.items():
            for field, value in fields.items():
                assert isinstance(value, Tensor), f"{type(optimizer).__name__} keeps {field} as {type(value)}"
                tensors[f"{names[parameter]}/{field}"] = value
    return tensors


def load_optimizers(model: nn.Module, optimizers: Iterable[Optimizer], tensors: Tensors) -> None:
    """Replace the optimisers' state by that of `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    owner = {p: optimizer for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    for optimizer in optimizers:
        optimizer.state.clear()
    for key, tensor in tensors.items():
        name, _, field = key.rpartition("/")
        parameter = parameters[name]
        like = tensor.to(parameter.device) if field != "step" or _step_on_device(owner[parameter]) else tensor
        owner[parameter].state[parameter][field] = like.clone()


def _step_on_device(optimizer: Optimizer) -> bool:
    """Fused and capturable optimisers keep their step counts beside the parameters."""
    return any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)


def load_weights(model: nn.Module, tensors: Tensors) -> None:
    """Copy weights into a model in place, so that references to its parameters stay valid."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(like(tensor, tensors[name]))
