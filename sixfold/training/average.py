"""Averages of the weights over training steps, which often score better than the weights of a single step.

The weights in training are never changed: the average is validated, kept as the best, and saved as the run's model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from sixfold.config.schema import Training
from sixfold.core.sharded_tensors import like, whole_tensors
from sixfold.runs.run import Run
from sixfold.training import checkpoint
from sixfold.training.checkpoint import Checkpoint, DamagedError
from sixfold.training.processes import Processes

_GROUP, _UPDATES = "average", "/updates"  # no weight's name has a slash


def make_average(training: Training, run: Run, processes: Processes) -> Average:
    """The average that `training.average` asks for."""
    value = training.average
    if value is None:
        return Average()
    return LastCheckpoints(int(value), training.keep, run) if value >= 2 else Exponential(value)


class Average:
    """No average: the weights as they are."""

    def update(self, model: nn.Module) -> None:
        """Called after each optimiser step."""

    def weights(self, current: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """The weights to validate and save as the run's model, given the weights of this step."""
        return dict(current)

    def saved(self, candidate: nn.Module) -> dict[str, dict[str, Tensor]]:
        """Groups of tensors to be stored in a checkpoint."""
        return {}

    def handed_out(self, saved: Checkpoint) -> dict[str, Tensor]:
        """The value of `weights` at the step of a checkpoint."""
        averaged = saved.tensors(_GROUP)
        averaged.pop(_UPDATES, None)
        return {**saved.tensors("model"), **averaged}

    def needs(self, steps: Sequence[int]) -> set[int]:
        """Which of these checkpoints (by step, the last first) the average still needs."""
        return set()

    def load(self, saved: Checkpoint) -> None:
        """Restore the state of a checkpoint."""

    def move(self, run: Run) -> None:
        """Look for checkpoints in another run's directory from now on."""


class Exponential(Average):
    """After each step: mean ← β mean + (1 − β) weights.

    β = min(decay, (1 + t)/(10 + t)) at the t-th update after the first, so that the first steps, when weights change
    fast, are forgotten fast.
    """

    def __init__(self, decay: float):
        self._decay = decay
        self._updates = 0
        self._mean: dict[str, Tensor] = {}  # on the devices of the weights, and under FSDP sharded like them
        self._loaded = False  # whether the mean is still as loaded from disk: unsharded, on the CPU

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        weights = {name: t for name, t in model.state_dict().items() if t.is_floating_point()}
        if not self._updates:
            self._mean = {name: tensor.clone() for name, tensor in weights.items()}
        else:
            if self._loaded:
                self._mean = {name: like(tensor, self._mean[name]) for name, tensor in weights.items()}
            kept = min(self._decay, (1 + self._updates) / (10 + self._updates))
            for name, tensor in weights.items():
                self._mean[name].lerp_(tensor, 1 - kept)
        self._updates += 1
        self._loaded = False

    def weights(self, current: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        return {**current, **whole_tensors(self._mean)}

    def saved(self, candidate: nn.Module) -> dict[str, dict[str, Tensor]]:
        return {_GROUP: {**self._mean, _UPDATES: torch.tensor(self._updates)}}

    def load(self, saved: Checkpoint) -> None:
        self._mean = saved.tensors(_GROUP)
        self._updates = int(self._mean.pop(_UPDATES))
        self._loaded = True


class LastCheckpoints(Average):
    """The mean of the current weights and those of the last checkpoints.

    Only checkpoints at multiples of checkpoint_every are used, so that a checkpoint written at Ctrl-C has no effect;
    and only healthy ones, since the others would make the mean worse.
    """

    def __init__(self, number: int, keep: int, run: Run):
        self._before, self._keep, self._folder = number - 1, keep, run.training

    def weights(self, current: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        total = {name: tensor.double() for name, tensor in current.items() if tensor.is_floating_point()}
        number = 1
        for earlier in self._steps_before(step):
            try:
                tensors = checkpoint.read(self._folder / f"step-{earlier}").tensors("model")
            except DamagedError:  # the mean of the others is better than an error
                continue
            for name, tensor in total.items():
                tensor += tensors[name].to(tensor.device)
            number += 1
        return {**current, **{name: (tensor / number).to(current[name].dtype) for name, tensor in total.items()}}

    def saved(self, candidate: nn.Module) -> dict[str, dict[str, Tensor]]:
        """The mean itself is saved, since the checkpoints that it was made of may be deleted."""
        return {_GROUP: {name: t for name, t in candidate.state_dict().items() if t.is_floating_point()}}

    def needs(self, steps: Sequence[int]) -> set[int]:
        """For each checkpoint that the run may be resumed from, the ones to average with it."""
        return {earlier for step in steps[: self._keep] for earlier in self._steps_before(step)}

    def move(self, run: Run) -> None:
        self._folder = run.training

    def _steps_before(self, step: int) -> list[int]:
        """The steps of the checkpoints to average with the weights of `step`."""
        found: list[int] = []
        for directory in checkpoint.checkpoints_in(self._folder):
            try:
                state = checkpoint.read_state(directory)
            except DamagedError:
                continue
            if state["step"] < step and state.get("grid") and state.get("healthy"):
                found.append(state["step"])
        return found[: self._before]
