"""How the length of a text enters its score: a sum of log-probabilities always favours the shorter.

score = log p / lp(L)        L tokens, the end included

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
        """The most that `log_p`, which can only fall, may come to: lp rises or falls throughout, so an end has it."""
        return max(self.score(log_p, shortest), self.score(log_p, longest))


PLAIN = LengthPenalty("none")
