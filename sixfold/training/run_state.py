"""The state of a run, and why it stops."""

from __future__ import annotations

from collections.abc import Sequence
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
    measured: dict[str, list[float]] = field(default_factory=dict)  # for each measure of a part its sums

    def measure(self, name: str, sums: Sequence[float]) -> None:
        """Add what parts measured in a step, such as the load of each expert."""
        before = self.measured.get(name, [0.0] * len(sums))
        self.measured[name] = [a + b for a, b in zip(before, sums, strict=True)]

    def shares(self) -> dict[str, list[float]]:
        """The share of each sum in the total of its measure."""
        totals = {name: sum(sums) or 1.0 for name, sums in self.measured.items()}
        return {name: [each / totals[name] for each in sums] for name, sums in sorted(self.measured.items())}


class Reason(NamedTuple):
    """Why a run stops."""

    text: str
    asked: bool = False  # whether a signal stopped the run, which is then unfinished
