"""Watches the loss and the gradient of each step, and says what to do when something went wrong.

    a step whose loss or gradient is no finite number      is skipped
    several of these                                       roll back
    a loss that jumped far up and stays there              rolls back
    more than a few roll-backs without a good stretch      give up

To roll back is to take the weights and the optimiser of the last good checkpoint, and go on with the data
that come next at half the learning rate.

What counts as far up. The loss of a batch is noisy, falls fast at first, and once in a while a batch is odd; none
of this is trouble. After a bad step the loss jumps and stays up, or it climbs for hundreds of steps. So each
loss is compared with the lowest that the running mean has ever been, not with the mean of now, which would
follow it up; a loss counts as high if it is above that by more than half a nat, and by more than four times what
separates neighbouring steps; and it takes many more high ones than others to roll back.

    loss │`.                        . .·.·.··    high: each adds one
         │  `.        ·          .·
         │- - `.- - - - - - - - · - - - - - - -   limit = lowest mean + max(½ nat, 4 usual differences)
         │       `·.·            \\ the others: each takes one away
         │__________·.·.·.·.·.·________________   lowest mean

Every process sees the same two numbers of the whole step, so all decide alike.
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


ROLL_BACKS = 3  # without a good stretch between them
GOOD_STRETCH = 1000  # steps
SUSTAINED = 40  # how many more steps must be high than not
UNUSABLE = 3  # steps in a row that are not finite
PAID_BY = 10  # good steps that make up for one of them
FEW = 10  # steps of which a mean may be low by luck
_GUESS = 1.0  # nats between neighbouring steps, as long as one does not know
CALM = 20  # steps without anything to remark, after which a state is good
MEMORY = 100  # steps that the running mean looks back
NATS, DIFFERENCES = 0.5, 4.0  # how far up is high, at least
_LARGEST = 1e9  # a loss is as good as that if it is larger: sums of it stay finite


@dataclass
class _Seen:
    """What is remembered of the losses since the start, or since the last roll-back."""

    steps: int = 0  # that were neither high nor skipped
    last: float = 0.0
    mean: float = 0.0
    lowest: float = 0.0  # of the mean
    difference: float = _GUESS  # between neighbouring steps, in the mean
    high: int = 0  # high steps, minus others
    unpaid: int = 0  # PAID_BY for each skipped step, minus good ones

    @property
    def limit(self) -> float:
        return self.lowest + max(NATS, DIFFERENCES * self.difference)

    def is_high(self, loss: float) -> bool:
        return self.steps > 0 and loss > self.limit

    def learn(self, loss: float) -> None:
        """A loss that is as it should be. At first all weigh the same, then the recent ones more."""
        if self.steps:  # the guess counts as one difference
            self.difference += (abs(loss - self.last) - self.difference) / min(self.steps + 1, MEMORY)
        self.steps += 1
        self.mean += (loss - self.mean) / min(self.steps, MEMORY)
        self.lowest = self.mean if self.steps <= FEW else min(self.lowest, self.mean)
        self.last = loss


class Guard:
    """Judges one step after the other. The verdict comes before the optimiser acts."""

    def __init__(self) -> None:
        self.rate = 1.0  # a factor on the learning rate
        self.reason: str | None = None  # why the last verdict was not to go on
        self.gave_up: str | None = None  # the explanation, at the end
        self._seen = _Seen()
        self._calm = CALM  # steps without anything to remark; fresh weights are as good a state as any
        self._good = 0  # steps since the last roll-back in which something was learnt
        self._roll_backs = 0  # without a good stretch between them
        self._to_reach: float | None = None  # after a roll-back: the loss to come down to before all is well again

    @property
    def healthy(self) -> bool:
        """Whether a checkpoint made now is a state to go back to."""
        return self.gave_up is None and self._to_reach is None and self._calm >= CALM

    def judge(self, loss: float, norm: float) -> Verdict:
        """What to do with a step of this loss per token and this norm of the gradient."""
        if self.gave_up is not None:
            return Verdict.STOP
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return self._unusable(loss, norm)
        return self._usable(min(loss, _LARGEST))

    def _unusable(self, loss: float, norm: float) -> Verdict:
        seen = self._seen
        self._calm = 0
        seen.unpaid += PAID_BY
        self.reason = f"the loss is {_words(loss)} and the norm of the gradient {_words(norm)}"
        if seen.unpaid < UNUSABLE * PAID_BY:
            return Verdict.SKIP
        return self._trouble(f"{self.reason}, and it was not the first such step")

    def _usable(self, loss: float) -> Verdict:
        seen = self._seen
        high = seen.is_high(loss)
        seen.unpaid = max(seen.unpaid - 1, 0)
        seen.high = max(seen.high + (1 if high else -1), 0)
        if seen.high >= SUSTAINED:
            return self._trouble(
                f"the loss was {seen.lowest:.4g} and stays above {seen.limit:.4g} now; in this step it is {loss:.4g}"
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
        """Roll back, if that is not known to be in vain."""
        self.reason = what
        if self._roll_backs == ROLL_BACKS:
            self.gave_up = (
                f"training does not get on: {what}. It went back to a good state {ROLL_BACKS} times within a short "
                f"while, the last time with {self.rate:g} of the learning rate, and each time it went wrong again. Try "
                f"a lower training.learning_rate or more training.warmup_steps; see that training.clip is not 0; "
                f"with training.precision bfloat16, try float32"
            )
            return Verdict.STOP
        self._roll_backs += 1
        self.rate /= 2
        if self._to_reach is None and self._seen.steps > FEW:
            self._to_reach = self._seen.limit
        # The state to go back to may be of long ago, when losses were higher.
        self._seen, self._calm, self._good = _Seen(), 0, 0
        return Verdict.ROLL_BACK

    def state(self) -> dict[str, Any]:
        """All that later verdicts depend on, as strict JSON."""
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
        return "not a number"
    return "infinite" if math.isinf(number) else f"{number:.4g}"
