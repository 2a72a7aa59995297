"""Times contenders in turn, and computes the ratios of their times with confidence intervals.

On a shared machine, or one that changes its clock rate, speed drifts by a fifth within minutes. So contenders run
directly after each other, and only ratios within a round count.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

OURS = "sixfold"
SEED = 1
RESAMPLES = 10_000
FEWEST = 3  # rounds that an interval needs
NO_TIME = "there is no time left; give more --seconds"


class Contender(NamedTuple):
    name: str
    step: Callable[[], float]  # the timed work; returns a number to record, such as a loss, or tokens written
    parameters: int = 0


class Ratio(NamedTuple):
    """A contender's time divided by another's: the median over rounds. Above 1, the other is faster."""

    median: float
    low: float | None  # the 95 % interval of the median, by bootstrap over rounds; None if there are too few rounds
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.median:.3f}"
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def told_rounds(number: int) -> str:
    """The number of rounds in words, with a remark if they are too few for an interval."""
    rounds = "one round" if number == 1 else f"{number} rounds"
    return rounds if number >= FEWEST else f"{rounds}, no interval"


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> Ratio:
    """The median over rounds of their time divided by ours, with its interval by bootstrap over rounds."""
    ratios = np.asarray(theirs) / np.asarray(ours)
    if len(ratios) < FEWEST:
        return Ratio(float(np.median(ratios)), None, None)
    picks = np.random.default_rng(SEED).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[picks], axis=1), [2.5, 97.5])
    return Ratio(float(np.median(ratios)), float(low), float(high))


def race(
    contenders: Sequence[Contender],
    rounds: int,
    steps: int,
    noted: dict[str, list[float]],
    seconds: float = math.inf,
) -> dict[str, list[float]]:
    """Seconds of a step, by contender and round; the results of the steps are added to `noted`.

    The first contender and the direction change every round, so that none always runs after the same one. The number of
    rounds is limited by `seconds`, but there is at least one.
    """
    times: dict[str, list[float]] = {c.name: [] for c in contenders}
    began = time.perf_counter()
    gc.disable()
    try:
        for r in range(rounds):
            if r and (time.perf_counter() - began) * (r + 1) / r > seconds:
                break
            start = r % len(contenders)
            order = [*contenders[start:], *contenders[:start]]
            for contender in order if r % 2 == 0 else reversed(order):
                times[contender.name].append(_median_time(contender, steps, noted))
            gc.collect()
    finally:
        gc.enable()
    return times


def _median_time(contender: Contender, steps: int, noted: dict[str, list[float]]) -> float:
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        value = contender.step()
        seconds.append(time.perf_counter() - begin)
        noted[contender.name].append(value)
    return statistics.median(seconds)
