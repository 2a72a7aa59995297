"""The table of metrics, by their names in a configuration. torch and sacreBLEU are not imported."""

from __future__ import annotations

from sixfold.scoring.bleu import BLEU, CHRF, SENTENCE_BLEU, TER
from sixfold.scoring.error_rates import (
    exact_match,
    matches,
    mispronounced,
    pronunciation,
    symbol_error_rate,
    symbol_errors,
    word_error_rate,
    word_errors,
)
from sixfold.scoring.gleu import gleu, gleu_each, gleu_signature
from sixfold.scoring.labels import LABEL_METRICS
from sixfold.scoring.metric import Metric
from sixfold.scoring.rouge import rouge1, rouge1_each, rouge2, rouge2_each, rouge_l, rouge_l_each, rouge_signature

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("bleu", True, BLEU.score, BLEU.statistics, BLEU.total, BLEU.signature),
        Metric("chrf", True, CHRF.score, CHRF.statistics, CHRF.total, CHRF.signature),
        Metric("ter", False, TER.score, TER.statistics, TER.total, TER.signature),
        Metric("rouge1", True, rouge1, rouge1_each, signature=rouge_signature),
        Metric("rouge2", True, rouge2, rouge2_each, signature=rouge_signature),
        Metric("rougeL", True, rouge_l, rouge_l_each, signature=rouge_signature),
        Metric("gleu", True, gleu, gleu_each, signature=gleu_signature),
        Metric("sentence_bleu", True, SENTENCE_BLEU.score, SENTENCE_BLEU.statistics, signature=SENTENCE_BLEU.signature),
        Metric("exact_match", True, exact_match, matches),
        Metric("symbol_error_rate", False, symbol_error_rate, symbol_errors),
        Metric("word_error_rate", False, word_error_rate, word_errors),
        Metric("pronunciation", False, pronunciation, mispronounced),
    )
}
METRICS |= {metric.name: metric for metric in LABEL_METRICS}
