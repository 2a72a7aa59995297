"""Drift: a run that improves a trained model ends if its outputs get much worse, or much longer or shorter.

Training by a reward has no reference text that holds the model: outputs may learn to please the metric alone, or stop
early. So the first validation, of the weights that the run begins with, sets limits for the later ones:

    metric            at least 1 − s of the first     (an error rate e counts as 100 − e)
    output_length     at least 1 − s of the first or of 1, whichever is smaller; at most 1 + s of the larger
                      (1 is the length of the references)

`Task.drift` is the share s. The best weights are kept, as always.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sixfold.scoring.metric import Metric
from sixfold.scoring.outputs import LENGTH

Scores = Mapping[str, float]


def watched(scores: Scores, metric: Metric) -> dict[str, float]:
    """The scores that must not drift, as far as a validation has them."""
    found = {name: scores[name] for name in (metric.name, LENGTH) if name in scores}
    return found if all(map(math.isfinite, found.values())) else {}


def drifted(first: Scores, now: Scores, metric: Metric, share: float) -> str:
    """How the scores have left their limits; empty if they have not."""

    def good(score: float) -> float:
        return score if metric.higher_is_better else max(100 - score, 0.0)

    found = []
    if metric.name in first and metric.name in now and good(now[metric.name]) < (1 - share) * good(first[metric.name]):
        found.append(f"{metric.name} went from {first[metric.name]:.4g} to {now[metric.name]:.4g}")
    if LENGTH in first and LENGTH in now and not _between(first[LENGTH], now[LENGTH], share):
        found.append(f"the length of outputs went from {first[LENGTH]:.4g} to {now[LENGTH]:.4g} of the references'")
    return " and ".join(found)


def _between(first: float, now: float, share: float) -> bool:
    return (1 - share) * min(first, 1.0) <= now <= (1 + share) * max(first, 1.0)
