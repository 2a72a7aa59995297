"""BLEU, chrF2 and TER on plain text, and BLEU of single texts, as sacreBLEU computes them, with its signatures.

Hypotheses and references are plain, detokenised text: sacreBLEU tokenises both in one fixed way, which makes its
numbers comparable between papers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from sixfold.scoring.error_rates import Hypotheses, PerText, References, check, per_cent

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as SacreMetric


@dataclass(frozen=True)
class Sacre:
    """One of sacreBLEU's metrics, with its defaults. Each call creates a new object: sacreBLEU's keep state."""

    name: str

    def score(self, hypotheses: Hypotheses, references: References) -> dict[str, float]:
        """The score of all texts together."""
        check(hypotheses, references)
        return {self.name: float(_new(self.name).corpus_score(list(hypotheses), _streams(references)).score)}

    def signature(self, references: References) -> str:
        """The settings it was computed with: "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:…"."""
        metric = _new(self.name)
        counts = {len(several) for several in references}
        metric.num_refs = counts.pop() if len(counts) == 1 else -1  # scoring would set it; −1: it varies
        return str(metric.get_signature())

    def statistics(self, hypotheses: Hypotheses, references: References) -> list[PerText]:
        """The counts of each text, such as its n-grams and those that are in a reference."""
        check(hypotheses, references)
        return _new(self.name)._extract_corpus_statistics(list(hypotheses), _streams(references))

    def total(self, rows: Sequence[PerText]) -> float:
        """The score of texts by their counts."""
        return float(_one(self.name)._aggregate_and_compute([list(row) for row in rows]).score)


class SentenceBleu(Sacre):
    """The mean of the BLEU of each text: over the orders of n-grams that it has, smoothed where none matches."""

    def score(self, hypotheses: Hypotheses, references: References) -> dict[str, float]:
        return {self.name: self.total(self.statistics(hypotheses, references))}

    def statistics(self, hypotheses: Hypotheses, references: References) -> list[PerText]:
        """For each text: its BLEU from 0 to 1, and the number of texts, 1."""
        check(hypotheses, references)
        bleu: Any = _one(self.name)
        pairs = zip(hypotheses, references, strict=True)
        return [(bleu.sentence_score(hypothesis, list(own)).score / 100, 1) for hypothesis, own in pairs]

    def signature(self, references: References) -> str:
        return f"{super().signature(references)}|mean of texts"

    def total(self, rows: Sequence[PerText]) -> float:
        return per_cent(rows)


BLEU, CHRF, TER, SENTENCE_BLEU = Sacre("bleu"), Sacre("chrf"), Sacre("ter"), SentenceBleu("sentence_bleu")


def _new(name: str) -> SacreMetric:
    """A new metric of sacreBLEU, imported here because the import is slow and listing metrics does not need it."""
    from sacrebleu.metrics import bleu, chrf, ter

    if name == "bleu":
        return bleu.BLEU(force=True)  # `force` only silences a warning about texts that end in " ."
    if name == "sentence_bleu":
        return bleu.BLEU(effective_order=True)
    return chrf.CHRF() if name == "chrf" else ter.TER()


_one = cache(_new)  # for `total`, which keeps no state


def _streams(references: References) -> list[list[Any]]:
    """The first references of all texts, the second references of all, …; None where a text has fewer."""
    most = max(map(len, references))
    return [[several[i] if i < len(several) else None for several in references] for i in range(most)]
