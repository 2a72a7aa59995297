"""The type of all metrics. torch and sacreBLEU are not imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sixfold.scoring.error_rates import Hypotheses, PerText, References, per_cent


def no_signature(references: References) -> str:
    return ""


@dataclass(frozen=True)
class Metric:
    """A way to score texts, in per cent.

    `score` returns the metric under its own name first, then related numbers. The metric is a function of sums over the
    texts: `total(statistics(hypotheses, references))` is the same number, and so any sample of the texts can be scored
    by summing rows, without reading the texts again.
    """

    name: str
    higher_is_better: bool
    score: Callable[[Hypotheses, References], dict[str, float]]
    statistics: Callable[[Hypotheses, References], list[PerText]]  # a row of summands for each text
    total: Callable[[Sequence[PerText]], float] = per_cent  # the score of such rows
    signature: Callable[[References], str] = no_signature  # the settings it was computed with
    with_labels: Callable[[Sequence[str]], Metric] | None = None  # fixes the labels, to mix rows of two systems
