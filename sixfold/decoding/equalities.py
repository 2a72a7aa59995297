"""Jobs that are decoded in two ways, and the gap between their outputs.

verify/contract/searching.py measures by it that cached = uncached, and alone = in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sixfold.core.ids import BOS, EOS, PAD
from sixfold.decoding.engine import search
from sixfold.decoding.job import Hypothesis, Job, Method
from sixfold.decoding.step import StepFunction


class Gap(NamedTuple):
    """The difference between two lists of outputs."""

    difference: float  # the largest between the log-probabilities of a token; ∞ where texts differ, but for a tie
    different: int = 0  # outputs that differ
    outputs: int = 0


class Trial(NamedTuple):
    """Jobs, and how they are decoded: in two ways that must give equal outputs."""

    jobs: Sequence[Job]
    method: Method
    never: Sequence[int] = (PAD, BOS)
    tie: float = 0.0  # two words, or texts, count as equally likely up to this difference of log-probabilities

    def decode(self, step: StepFunction, batch_tokens: int = 10**6) -> list[list[Hypothesis]]:
        """The outputs of each job, in order."""
        how: dict[str, Any] = {"never": self.never, "batch_tokens": batch_tokens}
        found = {id(job): hypotheses for job, hypotheses in search(step, self.jobs, self.method, **how)}
        return [found[id(job)] for job in self.jobs]


def compare(left: Sequence[Sequence[Hypothesis]], right: Sequence[Sequence[Hypothesis]], tie: float = 0.0) -> Gap:
    """The gap between two lists of outputs for the same jobs."""
    pairs = [pair for one, other in zip(left, right, strict=True) for pair in zip(one, other, strict=True)]
    different = sum((one.tokens, one.ended) != (other.tokens, other.ended) for one, other in pairs)
    return Gap(largest(_gap(one, other, tie) for one, other in pairs), different, len(pairs))


def largest(gaps: Iterable[float]) -> float:
    """The largest gap; NaN counts as infinite."""
    return max((math.inf if math.isnan(gap) else gap for gap in gaps), default=0.0)


def _gap(left: Hypothesis, right: Hypothesis, tie: float) -> float:
    """The largest difference between the log-probabilities of two outputs, token by token.

    Different texts count as equal only in a tie, which the last bit decides: the first two words that differ, or the
    complete texts, are equally likely. Otherwise the gap is infinite.
    """
    words = zip((*left.tokens, EOS), (*right.tokens, EOS), strict=False)
    differ = next((index for index, (one, other) in enumerate(words) if one != other), None)
    pairs = list(zip(left.log_probs, right.log_probs, strict=False))
    if differ is None:
        return largest(abs(a - b) for a, b in pairs)
    apart = min(abs(pairs[differ][0] - pairs[differ][1]), abs(left.score - right.score))
    return max(largest(abs(a - b) for a, b in pairs[:differ]), apart if apart <= tie else math.inf)
