"""The table of metrics, by the names a configuration knows. torch and sacreBLEU are not imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sixfold.scoring.bleu import bleu, bleu_signature, chrf, chrf_signature
from sixfold.scoring.errors import (
    Hypotheses,
    References,
    exact_match,
    pronunciation,
    symbol_error_rate,
    word_error_rate,
)


def no_signature(references: References) -> str:
    return ""


@dataclass(frozen=True)
class Metric:
    """A way to score texts. In per cent, all of them.

    `score` gives the metric under its own name first, and then what else is known of it.
    """

    name: str
    higher_is_better: bool
    score: Callable[[Hypotheses, References], dict[str, float]]
    signature: Callable[[References], str] = no_signature  # how it was computed, for others to compare


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("bleu", True, bleu, bleu_signature),
        Metric("chrf", True, chrf, chrf_signature),
        Metric("exact_match", True, exact_match),
        Metric("symbol_error_rate", False, symbol_error_rate),
        Metric("word_error_rate", False, word_error_rate),
        Metric("pronunciation", False, pronunciation),
    )
}
