"""The base class of observers, and the records that they receive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sixfold.text.preparation import Reference

Record = Mapping[str, Any]  # a line of the log: "kind" ("train", "valid", or an event), "step", numbers


class StepDone(NamedTuple):
    """One optimiser step."""

    step: int
    steps: int  # of the complete run; 0 if that is not known yet
    loss: float  # per `unit`, without smoothing
    rate: float  # the learning rate
    tokens: float  # scored targets, in `unit`
    seconds: float
    padding: float  # share of PAD in the inputs
    unit: str = "tokens"  # the task's main count, such as "texts"


class Validated(NamedTuple):
    """One validation."""

    step: int
    scores: Mapping[str, float]
    references: Sequence[Reference]  # of the validation text
    answers: Sequence[str]  # the model's, one for each reference; empty if only the loss is computed


class Observer:
    """The methods are called during a run, in the first process only, and do nothing unless overridden.

    An observer must not change the model, the data or torch's random generators: with an observer, a run must give
    the same result.
    """

    def begin(self, step: int, steps: int) -> None:
        """Training begins after `step` of `steps`."""

    def step(self, done: StepDone) -> None:
        """A step is done. This must cost next to nothing."""

    def record(self, record: Record) -> None:
        """A line was written to the log: every log_every steps, after each validation, and for events."""

    def validated(self, done: Validated) -> None:
        """A validation is done, and its line of the log was written."""

    def close(self) -> None:
        """The run is over, or interrupted."""
