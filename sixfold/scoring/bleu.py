"""BLEU, chrF2 and TER on plain text, as sacreBLEU computes them, with its signatures.

They compare whole texts, so hypotheses and references are detokenised; sacreBLEU cuts them into words
by itself, alike for everybody, which is what makes its numbers comparable.
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
    """One of sacreBLEU's metrics as it is by default. Each call makes a fresh one: they remember what they scored."""

    name: str

    def score(self, hypotheses: Hypotheses, references: References) -> dict[str, float]:
        """Of all texts together."""
        check(hypotheses, references)
        return {self.name: float(_new(self.name).corpus_score(list(hypotheses), _streams(references)).score)}

    def signature(self, references: References) -> str:
        """How it was computed, to be written beside it: "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:…"."""
        metric = _new(self.name)
        counts = {len(several) for several in references}
        metric.num_refs = counts.pop() if len(counts) == 1 else -1  # as it learns by scoring; −1: it varies
        return str(metric.get_signature())

    def statistics(self, hypotheses: Hypotheses, references: References) -> list[PerText]:
        """The counts of each text, such as its n-grams and how many of them are in a reference."""
        check(hypotheses, references)
        return _new(self.name)._extract_corpus_statistics(list(hypotheses), _streams(references))

    def total(self, rows: Sequence[PerText]) -> float:
        """The score from such counts."""
        return float(_one(self.name)._aggregate_and_compute([list(row) for row in rows]).score)


BLEU, CHRF, TER = Sacre("bleu"), Sacre("chrf"), Sacre("ter")


def _new(name: str) -> SacreMetric:
    """Imported here, so that a list of metrics does not wait for it."""
    from sacrebleu.metrics import bleu, chrf, ter

    if name == "bleu":
        return bleu.BLEU(force=True)  # not to be warned of texts that end in " ."; the number is the same
    return chrf.CHRF() if name == "chrf" else ter.TER()


_one = cache(_new)  # for sums, of which it remembers nothing


def _streams(references: References) -> list[list[Any]]:
    """First references of all texts, second references of all …; None where a text has no more."""
    most = max(map(len, references))
    return [[several[i] if i < len(several) else None for several in references] for i in range(most)]
