"""The state of a run, and why it stops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass
class RunState:
    """The state of a run, besides tensors and the position in the data."""

    step: int = 0
    tokens: int = 0  # scored targets so far
    validated: int = 0  # the last step that was validated
    best: float | None = None  # best value of the metric
    best_loss: float | None = None  # the loss of the best weights
    best_step: int = 0
    waited: int = 0  # validations since the best one
    first: dict[str, float] = field(default_factory=dict)  # scores of the first validation that must not drift
    drifted: str = ""  # how they have drifted
    # Since the last line of the log:
    loss: float = 0.0  # sum over the scored targets
    scored: float = 0.0
    padding: list[float] = field(default_factory=list)
    terms: dict[str, list[float]] = field(default_factory=dict)  # for each further term its sum and its count


class Reason(NamedTuple):
    """Why a run stops."""

    text: str
    asked: bool = False  # whether a signal stopped the run, which is then unfinished
