"""What a metric is. torch and sacreBLEU are not imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sixfold.scoring.error_rates import Hypotheses, PerText, References, per_cent


def no_signature(references: References) -> str:
    return ""


@dataclass(frozen=True)
class Metric:
    """A way to score texts. In per cent, all of them.

    `score` gives the metric under its own name first, and then what else is known of it. The metric itself is a
    function of sums over the texts: `total(statistics(hypotheses, references))` is the same number, and since rows can
    be added up before, any choice of texts is scored without reading them again.
    """

    name: str
    higher_is_better: bool
    score: Callable[[Hypotheses, References], dict[str, float]]
    statistics: Callable[[Hypotheses, References], list[PerText]]  # of each text, numbers that can be summed
    total: Callable[[Sequence[PerText]], float] = per_cent  # the score of rows of them
    signature: Callable[[References], str] = no_signature  # how it was computed, for others to compare
    with_labels: Callable[[Sequence[str]], Metric] | None = None  # of labels: so that rows of two systems can be mixed
