"""The table of metrics, by the names a configuration knows. torch and sacreBLEU are not imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sixfold.scoring.bleu import BLEU, CHRF, TER
from sixfold.scoring.error_rates import (
    Hypotheses,
    PerText,
    References,
    exact_match,
    matches,
    mispronounced,
    per_cent,
    pronunciation,
    symbol_error_rate,
    symbol_errors,
    word_error_rate,
    word_errors,
)
from sixfold.scoring.rouge import rouge1, rouge1_each, rouge2, rouge2_each, rouge_l, rouge_l_each, rouge_signature


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


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("bleu", True, BLEU.score, BLEU.statistics, BLEU.total, BLEU.signature),
        Metric("chrf", True, CHRF.score, CHRF.statistics, CHRF.total, CHRF.signature),
        Metric("ter", False, TER.score, TER.statistics, TER.total, TER.signature),
        Metric("rouge1", True, rouge1, rouge1_each, signature=rouge_signature),
        Metric("rouge2", True, rouge2, rouge2_each, signature=rouge_signature),
        Metric("rougeL", True, rouge_l, rouge_l_each, signature=rouge_signature),
        Metric("exact_match", True, exact_match, matches),
        Metric("symbol_error_rate", False, symbol_error_rate, symbol_errors),
        Metric("word_error_rate", False, word_error_rate, word_errors),
        Metric("pronunciation", False, pronunciation, mispronounced),
    )
}

TEXT_METRICS = tuple(METRICS)  # of texts that a model writes
