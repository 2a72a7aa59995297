"""BLEU and chrF2 on plain text, as sacreBLEU computes them, with its signatures.

Both compare whole texts, so hypotheses and references are detokenised; sacreBLEU cuts them into words
by itself, alike for everybody, which is what makes its numbers comparable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sixfold.scoring.errors import Hypotheses, References, check

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreMetric


def bleu(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """Corpus BLEU, 0 to 100."""
    return {"bleu": _score(_bleu(), hypotheses, references)}


def chrf(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """Corpus chrF2, 0 to 100."""
    return {"chrf": _score(_chrf(), hypotheses, references)}


def bleu_signature(references: References) -> str:
    """How BLEU was computed, to be written beside it: "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:…"."""
    return _signature(_bleu(), references)


def chrf_signature(references: References) -> str:
    return _signature(_chrf(), references)


def _bleu() -> SacreMetric:
    from sacrebleu.metrics.bleu import BLEU  # here, so that a list of metrics does not wait for it

    return BLEU(force=True)  # not to be warned of texts that end in " ."; the number is the same


def _chrf() -> SacreMetric:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF()


def _score(metric: SacreMetric, hypotheses: Hypotheses, references: References) -> float:
    check(hypotheses, references)
    return float(metric.corpus_score(list(hypotheses), _streams(references)).score)


def _streams(references: References) -> list[list[Any]]:
    """First references of all texts, second references of all …; None where a text has no more."""
    most = max(map(len, references))
    return [[several[i] if i < len(several) else None for several in references] for i in range(most)]


def _signature(metric: SacreMetric, references: References) -> str:
    """What a fresh metric would say after scoring, where it learns how many references there are (−1: it varies)."""
    counts = {len(several) for several in references}
    metric.num_refs = counts.pop() if len(counts) == 1 else -1
    return str(metric.get_signature())
