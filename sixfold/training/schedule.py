"""The learning rate as a pure function of the step, so that a resumed run has the same rates.

There are w warm-up steps, then one of the curves below. Steps count from 1. A rate that falls to 0 reaches it one step
after the last, so that the last step still learns.

    inverse_sqrt          cosine                linear                warmup_stable_decay
       /\\                    /‾‾\\                 /\\                    /‾‾‾‾‾‾‾‾‾‾‾\\
      /   `-._              /    \\               /   `.                /             \\
     /        `--..__      /      `._           /       `.            /               \\
    /                     /          `--       /           `.        /                 \\
       w                     w                    w                     w          last 20 %
"""

from __future__ import annotations

import math
from collections.abc import Callable

from sixfold.config.schema import Training

_DECAY = 0.2  # share of the steps in which warmup_stable_decay falls


def rate(training: Training, step: float, steps: int) -> float:
    """The learning rate of a step out of 1 … steps; `training.learning_rate` is its peak."""
    return training.learning_rate * _SHAPES[training.schedule](step, warmup_of(training, steps), steps)


def warmup_of(training: Training, steps: int) -> float:
    """The steps of the warm-up, at least one; `training.warmup` below 1 is a share of the run."""
    warmup = training.warmup
    return max(warmup * steps if isinstance(warmup, float) else warmup, 1)


def inverse_sqrt(step: float, warmup: float, steps: int) -> float:
    """min(s/w, √(w/s)).

    "Attention Is All You Need" has d^−½ · min(s^−½, s · w^−3/2): the same, with a peak of (d·w)^−½.
    """
    return min(step / warmup, math.sqrt(warmup / step))


def cosine(step: float, warmup: float, steps: int) -> float:
    """Down to 0 along half a cosine."""
    return min(step / warmup, (1 - math.cos(math.pi * _left(step, warmup, steps))) / 2)


def linear(step: float, warmup: float, steps: int) -> float:
    """Down to 0 along a line."""
    return min(step / warmup, _left(step, warmup, steps))


def constant(step: float, warmup: float, steps: int) -> float:
    """At the peak from warm-up to the end."""
    return min(step / warmup, 1.0)


def warmup_stable_decay(step: float, warmup: float, steps: int) -> float:
    """At the peak, and in the last fifth of the steps down to 0 along a line.

        rate │  ┌─────────────────────┐
             │ ╱                       ╲
             │╱                         ╲
             └──┬─────────────────────┬──┬─ step
                w                 0.8·steps steps

    A run can be extended from any checkpoint before the decay: until then, rates don't depend on `steps`.
    """
    return min(step / warmup, _left(step, steps - round(_DECAY * steps), steps))


def _left(step: float, start: float, steps: int) -> float:
    """1 until `start`, then linearly down to 0 one step after the last."""
    if step <= start:
        return 1.0
    return max(steps + 1 - step, 0) / (steps + 1 - start)


_SHAPES: dict[str, Callable[[float, float, int], float]] = {
    shape.__name__: shape for shape in (inverse_sqrt, cosine, linear, constant, warmup_stable_decay)
}
