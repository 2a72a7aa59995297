"""The length penalty: without it, a sum of log-probabilities favours short texts.

score = log p / lp(L)        L tokens, EOS included

a number α   lp(L) = ((5 + L) / 6)^α      "Attention Is All You Need", after arXiv 1609.08144
"average"    lp(L) = L
"none"       lp(L) = 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LengthPenalty:
    """A length formula."""

    penalty: float | Literal["average", "none"] = "none"

    def divisor(self, length: int) -> float:
        if self.penalty == "none":
            return 1.0
        return float(length) if self.penalty == "average" else ((5 + length) / 6) ** self.penalty

    def score(self, log_p: float, length: int) -> float:
        return log_p / self.divisor(length)

    def best(self, log_p: float, shortest: int, longest: int) -> float:
        """The best score that a text of log_p can reach at a length from `shortest` to `longest`.

        log_p only falls, and lp is monotonic, so the best is at one of the two lengths.
        """
        return max(self.score(log_p, shortest), self.score(log_p, longest))


PLAIN = LengthPenalty("none")
