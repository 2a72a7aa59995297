"""Averages of the weights over the course of training, which often score better than the weights of any one step.

What is trained is never touched: the average is validated, kept as the best, and handed out.
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

_GROUP, _UPDATES = "average", "/updates"  # no weight has a name with a slash


def make_average(training: Training, run: Run, processes: Processes) -> Average:
    """The average that `training.average` asks for."""
    wish = training.average
    if wish is None:
        return Average()
    return LastCheckpoints(int(wish), training.keep, run) if wish >= 2 else Exponential(wish)


class Average:
    """No average: the weights as they are."""

    def update(self, model: nn.Module) -> None:
        """After each optimiser step."""

    def weights(self, current: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """What to validate and hand out, when training is at this step and has these weights."""
        return dict(current)

    def saved(self, candidate: nn.Module) -> dict[str, dict[str, Tensor]]:
        """Groups of tensors that belong into a checkpoint."""
        return {}

    def handed_out(self, saved: Checkpoint) -> dict[str, Tensor]:
        """What was to validate and hand out when the checkpoint was made."""
        averaged = saved.tensors(_GROUP)
        averaged.pop(_UPDATES, None)
        return {**saved.tensors("model"), **averaged}

    def needs(self, steps: Sequence[int]) -> set[int]:
        """Of the steps whose checkpoints are there, the last first: those that are needed again."""
        return set()

    def load(self, saved: Checkpoint) -> None:
        """Go on as from when the checkpoint was made."""

    def move(self, run: Run) -> None:
        """The checkpoints of the run lie in another directory now."""


class Exponential(Average):
    """After each step: mean ← β mean + (1 − β) weights.

    β = min(decay, (1 + t)/(10 + t)) at the t-th update after the first, so that the first steps, from which
    training is quick to get away, are as quickly forgotten.
    """

    def __init__(self, decay: float):
        self._decay = decay
        self._updates = 0
        self._mean: dict[str, Tensor] = {}  # placed, and under FSDP cut up, like the weights
        self._loaded = False  # whether it is still as it was on disk: whole, and on the CPU

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
    """The mean of the weights of now and of the last checkpoints before.

    Only checkpoints of the step grid count, so that one made because somebody pressed Ctrl-C changes nothing;
    and only healthy ones, since one bad one would spoil the mean.
    """

    def __init__(self, number: int, keep: int, run: Run):
        self._before, self._keep, self._folder = number - 1, keep, run.training

    def weights(self, current: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        total = {name: tensor.double() for name, tensor in current.items() if tensor.is_floating_point()}
        number = 1
        for earlier in self._steps_before(step):
            try:
                tensors = checkpoint.read(self._folder / f"step-{earlier}").tensors("model")
            except DamagedError:  # the mean of the others is better than no run
                continue
            for name, tensor in total.items():
                tensor += tensors[name].to(tensor.device)
            number += 1
        return {**current, **{name: (tensor / number).to(current[name].dtype) for name, tensor in total.items()}}

    def saved(self, candidate: nn.Module) -> dict[str, dict[str, Tensor]]:
        """The mean: those that it is of may be gone by the time that it is wanted again."""
        return {_GROUP: {name: t for name, t in candidate.state_dict().items() if t.is_floating_point()}}

    def needs(self, steps: Sequence[int]) -> set[int]:
        """For each checkpoint that the run may be resumed from, those before it."""
        return {earlier for step in steps[: self._keep] for earlier in self._steps_before(step)}

    def move(self, run: Run) -> None:
        self._folder = run.training

    def _steps_before(self, step: int) -> list[int]:
        """Of the checkpoints to average with the weights of a step."""
        found: list[int] = []
        for directory in checkpoint.checkpoints_in(self._folder):
            try:
                state = checkpoint.read_state(directory)
            except DamagedError:
                continue
            if state["step"] < step and state.get("grid") and state.get("healthy"):
                found.append(state["step"])
        return found[: self._before]
