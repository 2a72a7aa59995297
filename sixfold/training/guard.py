"""Watches the loss and the gradient of each step, and decides what to do when training diverges.

    condition                                                  action
    the loss or the gradient's norm is NaN or infinite         skip the step
    this happens several times                                 roll back
    the loss has risen far and stays high                      roll back
    more than ROLL_BACKS roll-backs in a short time            give up

Rolling back loads the weights and the optimiser of the last good checkpoint and continues with the next data at half
the learning rate.

The loss of a batch is noisy, falls fast at first, and is sometimes high for a single odd batch: this is not divergence.
When training diverges, the loss jumps and stays high, or it climbs for hundreds of steps. So each loss is compared with
the lowest value that the running mean has ever had; the current mean would rise with the loss. A loss is high if it
exceeds the lowest mean by more than half a nat and by more than four times the usual difference between neighbouring
steps. Training is rolled back when the high steps outnumber the others by SUSTAINED.

    loss │`.                        . .·.·.··    high: each adds one
         │  `.        ·          .·
         │- - `.- - - - - - - - · - - - - - - -   limit = lowest mean + max(½ nat, 4 usual differences)
         │       `·.·            \\ not high: each subtracts one
         │__________·.·.·.·.·.·________________   lowest mean

Every process sees the same loss and norm, those of the complete step, so all make the same decision.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Verdict(Enum):
    GO = "go"
    SKIP = "skipped"
    ROLL_BACK = "rolled back"
    STOP = "gave up"


ROLL_BACKS = 3  # largest number of roll-backs without GOOD_STRETCH good steps in between
GOOD_STRETCH = 1000  # roll-backs are forgotten after this many steps that are not skipped
SUSTAINED = 40  # roll back if high steps minus the others reach this number
UNUSABLE = 3  # roll back after this many steps in a row that are not finite
PAID_BY = 10  # one step that is not finite is forgotten after this many good steps
FEW = 10  # a mean over at most this number of steps may be low by chance
_GUESS = 1.0  # initial estimate, in nats, of the difference between neighbouring steps
CALM = 20  # a state is good after this many steps in a row that are neither high nor skipped
MEMORY = 100  # time constant, in steps, of the running mean
NATS, DIFFERENCES = 0.5, 4.0  # a loss is high above lowest + max(NATS, DIFFERENCES · usual difference)
_LARGEST = 1e9  # larger losses are clamped to this, so that their sums stay finite


@dataclass
class _Seen:
    """Statistics of the losses since the start, or since the last roll-back."""

    steps: int = 0  # neither high nor skipped
    last: float = 0.0
    mean: float = 0.0
    lowest: float = 0.0  # smallest value of the mean so far
    difference: float = _GUESS  # running mean of |loss − last|
    high: int = 0  # high steps minus others, at least 0
    unpaid: int = 0  # PAID_BY for each skipped step, minus 1 for each other one, at least 0

    @property
    def limit(self) -> float:
        return self.lowest + max(NATS, DIFFERENCES * self.difference)

    def is_high(self, loss: float) -> bool:
        return self.steps > 0 and loss > self.limit

    def learn(self, loss: float) -> None:
        """Add a loss that is not high: a plain mean over the first MEMORY steps, then an exponential one."""
        if self.steps:  # the initial estimate has the weight of one difference
            self.difference += (abs(loss - self.last) - self.difference) / min(self.steps + 1, MEMORY)
        self.steps += 1
        self.mean += (loss - self.mean) / min(self.steps, MEMORY)
        self.lowest = self.mean if self.steps <= FEW else min(self.lowest, self.mean)
        self.last = loss


class Guard:
    """Judges one step after another, before the optimiser acts."""

    def __init__(self) -> None:
        self.rate = 1.0  # a factor on the learning rate
        self.reason: str | None = None  # of the last verdict, unless it was GO
        self.gave_up: str | None = None  # the reason for the verdict STOP
        self._seen = _Seen()
        self._calm = CALM  # steps in a row that were neither high nor skipped; fresh weights count as good
        self._good = 0  # optimiser steps since the last roll-back
        self._roll_backs = 0  # without GOOD_STRETCH good steps in between
        self._to_reach: float | None = None  # after a roll-back: the mean loss at which a state is good again

    @property
    def healthy(self) -> bool:
        """Whether a checkpoint written now is a good state to roll back to."""
        return self.gave_up is None and self._to_reach is None and self._calm >= CALM

    def judge(self, loss: float, norm: float) -> Verdict:
        """The verdict on a step with this loss per token and this norm of the gradient."""
        if self.gave_up is not None:
            return Verdict.STOP
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return self._unusable(loss, norm)
        return self._usable(min(loss, _LARGEST))

    def _unusable(self, loss: float, norm: float) -> Verdict:
        seen = self._seen
        self._calm = 0
        seen.unpaid += PAID_BY
        self.reason = f"the loss is {_words(loss)} and the norm of the gradient is {_words(norm)}"
        if seen.unpaid < UNUSABLE * PAID_BY:
            return Verdict.SKIP
        return self._trouble(f"{self.reason}, as in earlier steps")

    def _usable(self, loss: float) -> Verdict:
        seen = self._seen
        high = seen.is_high(loss)
        seen.unpaid = max(seen.unpaid - 1, 0)
        seen.high = max(seen.high + (1 if high else -1), 0)
        if seen.high >= SUSTAINED:
            return self._trouble(
                f"the mean loss was {seen.lowest:.4g}, but losses stay above {seen.limit:.4g}; this one is {loss:.4g}"
            )
        if not high:
            seen.learn(loss)
        if self._to_reach is not None and seen.steps > FEW and seen.mean <= self._to_reach:
            self._to_reach = None
        self._calm = 0 if high else self._calm + 1
        self._good += 1
        if self._good >= GOOD_STRETCH and not seen.high:
            self._roll_backs = 0
        self.reason = None
        return Verdict.GO

    def _trouble(self, what: str) -> Verdict:
        """Roll back; give up if it has not helped ROLL_BACKS times."""
        self.reason = what
        if self._roll_backs == ROLL_BACKS:
            self.gave_up = (
                f"training diverges: {what}. It was rolled back to a good checkpoint {ROLL_BACKS} times within few "
                f"steps, the last time with {self.rate:g} of the learning rate, and diverged again each time. Try a "
                f"lower training.learning_rate or more training.warmup; make sure that training.clip is not 0; "
                f"instead of training.precision bfloat16, try float32"
            )
            return Verdict.STOP
        self._roll_backs += 1
        self.rate /= 2
        if self._to_reach is None and self._seen.steps > FEW:
            self._to_reach = self._seen.limit
        # The statistics start again, because losses may have been higher at the time of the checkpoint.
        self._seen, self._calm, self._good = _Seen(), 0, 0
        return Verdict.ROLL_BACK

    def state(self) -> dict[str, Any]:
        """The state that later verdicts depend on, as strict JSON."""
        return {
            "rate": self.rate,
            "reason": self.reason,
            "gave_up": self.gave_up,
            "calm": self._calm,
            "good": self._good,
            "roll_backs": self._roll_backs,
            "to_reach": self._to_reach,
            "seen": asdict(self._seen),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.rate, self.reason, self.gave_up = state["rate"], state["reason"], state["gave_up"]
        self._calm, self._good, self._roll_backs = state["calm"], state["good"], state["roll_backs"]
        self._to_reach, self._seen = state["to_reach"], _Seen(**state["seen"])


def _words(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "infinite" if math.isinf(number) else f"{number:.4g}"
