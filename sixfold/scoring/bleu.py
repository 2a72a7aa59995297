"""BLEU, chrF2 and TER on plain text, as sacreBLEU computes them, with its signatures.

Hypotheses and references are plain, detokenised text: sacreBLEU tokenises both in one fixed way, which makes its
numbers comparable between papers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from sixfold.scoring.error_rates import Hypotheses, PerText, References, check

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


BLEU, CHRF, TER = Sacre("bleu"), Sacre("chrf"), Sacre("ter")


def _new(name: str) -> SacreMetric:
    """A new metric of sacreBLEU, imported here because the import is slow and listing metrics does not need it."""
    from sacrebleu.metrics import bleu, chrf, ter

    if name == "bleu":
        return bleu.BLEU(force=True)  # `force` only silences a warning about texts that end in " ."
    return chrf.CHRF() if name == "chrf" else ter.TER()


_one = cache(_new)  # for `total`, which keeps no state


def _streams(references: References) -> list[list[Any]]:
    """The first references of all texts, the second references of all, …; None where a text has fewer."""
    most = max(map(len, references))
    return [[several[i] if i < len(several) else None for several in references] for i in range(most)]
