"""What a run writes: checkpoints, and its own model, which is the best one so far."""

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
    """The files of one run. `candidate` is a copy of the model, which is validated and handed out."""

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
        """Go on in another directory, to which all that was written has been moved."""
        self.run = run
        self.average.move(run)

    def load_candidate(self, model: nn.Module, step: int) -> None:
        """Give the copy the weights of now, averaged if that is wished."""
        weights = whole_tensors(model.state_dict())
        checkpoint.load_weights(self.candidate, self.average.weights(weights, step))

    def write(
        self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]], best: int, grid: bool
    ) -> None:
        """A checkpoint; then the model that is best so far, which can be made again from it."""
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
        """Make the candidate the run's own model."""
        model_files.save(self.candidate, self.run.directory, overwrite=True)

    def prune(self, now: int, best: int, later_too: bool = True) -> None:
        """Delete the checkpoints that nobody will need again.

        Later ones than this step are damaged, and of a future that will be another one; but until there is something
        in their place, they may stay.
        """
        steps = [checkpoint.step_of(p) for p in checkpoint.checkpoints_in(self.run.training)]
        recent, later = [s for s in steps if s <= now], [s for s in steps if s > now]
        wanted = {*recent[: self._keep], best, *self.average.needs(recent), *self.good_steps(now)[:1]}
        checkpoint.prune(self.run.training, wanted if later_too else wanted.union(later))

    def restore_best(self, saved: checkpoint.Checkpoint, best: int) -> None:
        """The run's own model as it was when this checkpoint was the last, whatever has become of it since."""
        try:
            found = saved if best == saved.step else checkpoint.read(self.run.training / f"step-{best}")
        except checkpoint.DamagedError as damage:
            self._say(f"{damage}; that was the best so far, so {model_files.WEIGHTS} is left as it is")
            return
        checkpoint.load_weights(self.candidate, self.average.handed_out(found))
        self.hand_out()

    def last_good(self, step: int) -> checkpoint.Checkpoint | None:
        """The last checkpoint that the run may go back to."""
        for good in self.good_steps(step):
            with suppress(checkpoint.DamagedError):
                return checkpoint.read(self.run.training / f"step-{good}")
        return None

    def good_steps(self, now: int) -> list[int]:
        """The steps that this run may go back to, the last first."""
        states = checkpoint.states(self.run.training)
        return [s["step"] for s in states if s.get("grid") and s.get("healthy") and s["step"] <= now]

    def saved_step(self, now: int) -> int:
        """The step of the last checkpoint up to now, or 0."""
        steps = map(checkpoint.step_of, checkpoint.checkpoints_in(self.run.training))
        return max((step for step in steps if step <= now), default=0)
