"""The number of steps of a run, and the share that is done; with `training.minutes`, planned again as time passes.

A plan event (step, steps) means: from this step on, the run has this number of steps in all. A run by steps has one
event. A run by minutes begins without knowing its speed, and gets a new event after a few steps and at fixed shares of
its time. The share that is done never jumps: the remaining share is spread over the remaining steps.

    share
      1 ┤                              ╭──      (600, 900): the machine became slower, so 900 steps and not 1,200
        │                        ╭─────╯
    0.5 ┤            ╭───────────╯              (0, 1200): one step is 1/1200 of the run
        │     ╭──────╯
      0 ┼─────╯──────────────────┬─────┬─
        0                       600   900   step

Schedules are functions of the share, so every run goes through the complete schedule. Given its events, a run is a
function of configuration, data and seed; the events are in the log and in every checkpoint.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Event = tuple[int, int]  # (step, steps)

UNKNOWN = 1_000_000_000  # steps of a run without a plan; in a run by minutes, the learning rate stays near 0 until then
FIRST = 3  # steps after which the speed is known well enough for a first plan
SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96)  # shares of the time at which steps are planned again
WINDOW = 50  # last steps from which the current speed is estimated
NEAR = 0.01  # relative change of the remaining steps below which a plan is kept


class Pace:
    """The plan of a run by steps: one event. The base of the others."""

    patience_ends = True  # whether the run ends when training.patience does

    def __init__(self, events: Iterable[Sequence[int]]):
        self.events: list[Event] = []
        self._shares: list[float] = []  # the share that was done at each event
        for step, steps in events:
            self.add(step, steps)

    @property
    def steps(self) -> int:
        """Steps of the complete run, as planned now; UNKNOWN if there is no plan yet."""
        return self.events[-1][1]

    @property
    def known_steps(self) -> int:
        """The steps of the run for a display; 0 if there is no plan yet."""
        return 0 if self.steps == UNKNOWN else self.steps

    def add(self, step: int, steps: int) -> None:
        """Record a plan: from `step` on, the run has `steps` steps in all."""
        self._shares.append(self.share(step) if self.events else 0.0)
        self.events.append((step, steps))

    def share(self, step: int) -> float:
        """The share of the run that is done after this step, from 0 to 1."""
        index = max(i for i, (first, _) in enumerate(self.events) if first <= step or i == 0)
        (first, steps), done = self.events[index], self._shares[index]
        return 1.0 if step >= steps else done + (1 - done) * (step - first) / (steps - first)

    def virtual_step(self, step: int) -> float:
        """The step at which a run of `steps` equal steps has done the same share: schedules are functions of it."""
        return step if len(self.events) == 1 else self.share(step) * self.steps

    def crosses(self, step: int, every: float) -> bool:
        """Whether a multiple of `every` falls on this step; `every` counts steps or, below 1, is a share of the run."""
        if every >= 1:
            return step % int(every) == 0
        return step > 0 and int(self.share(step) / every + 1e-9) > int(self.share(step - 1) / every + 1e-9)

    def plan(self, step: int, every: float) -> int | None:
        """The new number of steps, if a plan is due after this step; else None. `every` is training.validate_every."""
        return None

    def decay(self, step: int, waited: int) -> int | None:
        """The new number of steps, if the rate falls from this step on because validation does not improve; else None.

        `waited` is the number of validations since the best one.
        """
        return None

    def tell_step(self, seconds: float) -> None:
        """Record the duration of a step."""

    def tell_validation(self, seconds: float) -> None:
        """Record the duration of a validation."""

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""


class _Planned(Pace):
    """A plan that gets events during the run."""

    def __init__(self) -> None:
        super().__init__([(0, UNKNOWN)])

    def state(self) -> dict[str, Any]:
        return {"plan": {"events": self.events, "spent": 0.0}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().__init__(state["plan"]["events"])


class UntilPatience(_Planned):
    """A run without a length: a constant rate until validation has not improved for `patience` validations, then a
    decay over a quarter of the steps so far, from the best weights. warmup_stable_decay falls in just these steps.

        rate │  ┌──────────────────────┐ patience ends
             │ ╱                       │╲
             │╱                        │  ╲
             └─────────────────────────┴────╲─ step
    """

    patience_ends = False

    def __init__(self, patience: int):
        super().__init__()
        self.patience = patience

    def virtual_step(self, step: int) -> float:
        return step

    def decay(self, step: int, waited: int) -> int | None:
        return step + max(step // 4, 1) if self.steps == UNKNOWN and waited >= self.patience else None


class Replayed(_Planned):
    """The plan of another run, repeated."""

    def __init__(self, events: Iterable[Sequence[int]]):
        super().__init__()
        self._events = {event[0]: event[1] for event in events}

    def plan(self, step: int, every: float) -> int | None:
        return self._events.get(step) if step else None


class ByMinutes(_Planned):
    """A run by minutes: the number of steps that fit.

    The time counts from `started`; interruptions of the run are left out.
    """

    def __init__(self, minutes: float, started: float | None = None):
        super().__init__()
        self.seconds = 60 * minutes
        self._began = time.monotonic() if started is None else started
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._validation = 0.0  # seconds
        self._next = 0  # index of the share of the time at which a plan is due next

    def spent(self) -> float:
        return time.monotonic() - self._began

    def tell_step(self, seconds: float) -> None:
        self._recent.append(seconds)

    def tell_validation(self, seconds: float) -> None:
        # The last validation counts, not their mean: outputs get shorter while a model learns to end them.
        self._validation = seconds

    def state(self) -> dict[str, Any]:
        return {"plan": {"events": self.events, "spent": self.spent()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self._began = time.monotonic() - state["plan"]["spent"]
        self._next = self._passed()

    def plan(self, step: int, every: float) -> int | None:
        if not self._recent or not self._is_due(step):
            return None
        self._next = self._passed()
        left, now = self.steps - step, self._steps_left(self.share(step), every)
        return None if now and abs(now - left) <= NEAR * left else step + now

    def _passed(self) -> int:
        """The number of entries of SHARES that have passed."""
        return sum(share * self.seconds <= self.spent() for share in SHARES)

    def _is_due(self, step: int) -> bool:
        over = self.spent() >= self.seconds
        if self.steps == UNKNOWN:
            return step >= FIRST or over
        return step < self.steps and (over or self._passed() > self._next)

    def _steps_left(self, share: float, every: float) -> int:
        """Remaining steps at the current speed, with time for the validations between them and one at the end."""
        recent = list(self._recent)[1:] or list(self._recent)  # the first step of a run also allocates memory
        each, left = sum(recent) / len(recent), self.seconds - self.spent() - self._validation
        if every >= 1:
            each += self._validation / every
        else:
            left -= self._validation * int((1 - share) / every)
        return max(int(left / each), 0)
