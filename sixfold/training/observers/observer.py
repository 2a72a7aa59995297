"""What an observer can hear of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Record = Mapping[str, Any]  # a line of the log: "kind" ("train", "valid", or an event), "step", numbers


class StepDone(NamedTuple):
    """One optimiser step."""

    step: int
    steps: int  # of the whole run
    loss: float  # per token, or whatever the task counts; without smoothing
    rate: float  # the learning rate
    tokens: float  # that were scored
    seconds: float
    padding: float  # share of what was read
    unit: str = "tokens"  # what was scored


class Observer:
    """Hears of a run, in the first process only. Each method may be overridden; by itself it does nothing.

    An observer must leave the model, the data and torch's random generators as they are: a run with it is the same run.
    """

    def begin(self, step: int, steps: int) -> None:
        """Training begins after `step` of `steps`."""

    def step(self, done: StepDone) -> None:
        """A step is done. This must cost next to nothing."""

    def record(self, record: Record) -> None:
        """A line was written to the log: every log_every steps, after each validation, and for events."""

    def close(self) -> None:
        """The run is over, or interrupted."""
