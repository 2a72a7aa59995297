"""Writes a run's checkpoints, and its model, which is the best one so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from sixfold.core.sharded_tensors import whole_tensors
from sixfold.models.model import Model
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.training import checkpoint
from sixfold.training.average import Average
from sixfold.training.processes import Processes


class Store:
    """The files of one run. `candidate` is a copy of the model, which is validated and saved as the run's model."""

    def __init__(
        self,
        run: Run,
        candidate: Model,
        average: Average,
        processes: Processes,
        *,
        keep: int,
        say: Callable[[str], Any] = lambda text: None,
    ):
        self.run, self.candidate, self.average = run, candidate, average
        self._processes, self._keep, self._say = processes, keep, say

    def move(self, run: Run) -> None:
        """Continue in another directory, to which all files have been moved."""
        self.run = run
        self.average.move(run)

    def load_candidate(self, model: nn.Module, step: int) -> None:
        """Copy the current weights to the candidate, averaged if training.average is set."""
        weights = whole_tensors(model.state_dict())
        checkpoint.load_weights(self.candidate, self.average.weights(weights, step))

    def write(
        self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]], best: int, grid: bool
    ) -> None:
        """Write a checkpoint; then, if it is the best so far, the run's model, which can be restored from it."""
        step = state["step"]
        checkpoint.write(
            self.run.training / f"step-{step}",
            {**state, "grid": grid},
            {**tensors, **self.average.saved(self.candidate)},
            self._processes,
        )
        if self._processes.first:
            if best == step:
                self.hand_out()
            self.prune(step, best)
        self._processes.wait()

    def hand_out(self) -> None:
        """Save the candidate as the run's model."""
        model_files.save(self.candidate, self.run.directory, overwrite=True)

    def prune(self, now: int, best: int, later_too: bool = True) -> None:
        """Delete the checkpoints that are not needed again.

        Checkpoints after step `now` exist if they were damaged and the run was resumed from an earlier one. They are
        kept until a new checkpoint is written: then `later_too` is True.
        """
        steps = [checkpoint.step_of(p) for p in checkpoint.checkpoints_in(self.run.training)]
        recent, later = [s for s in steps if s <= now], [s for s in steps if s > now]
        wanted = {*recent[: self._keep], best, *self.average.needs(recent), *self.good_steps(now)[:1]}
        checkpoint.prune(self.run.training, wanted if later_too else wanted.union(later))

    def restore_best(self, saved: checkpoint.Checkpoint, best: int) -> None:
        """Restore the run's model as it was when this checkpoint was written."""
        try:
            found = saved if best == saved.step else checkpoint.read(self.run.training / f"step-{best}")
        except checkpoint.DamagedError as damage:
            self._say(f"{damage}; that was the best checkpoint, so {model_files.WEIGHTS} is left as it is")
            return
        checkpoint.load_weights(self.candidate, self.average.handed_out(found))
        self.hand_out()

    def last_good(self, step: int) -> checkpoint.Checkpoint | None:
        """The last intact checkpoint to roll back to."""
        for good in self.good_steps(step):
            with suppress(checkpoint.DamagedError):
                return checkpoint.read(self.run.training / f"step-{good}")
        return None

    def good_steps(self, now: int) -> list[int]:
        """The steps of healthy checkpoints to roll back to, the last first."""
        states = checkpoint.states(self.run.training)
        return [s["step"] for s in states if s.get("grid") and s.get("healthy") and s["step"] <= now]

    def saved_step(self, now: int) -> int:
        """The step of the last checkpoint up to now, or 0."""
        steps = map(checkpoint.step_of, checkpoint.checkpoints_in(self.run.training))
        return max((step for step in steps if step <= now), default=0)
