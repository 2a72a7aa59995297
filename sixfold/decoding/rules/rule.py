"""The interface of a rule, and the rules that need only token ids.

A rule reads the log-probabilities of the next word and changes them; −∞ forbids a word. Rules steer the choice; the
reported score is the model's own. Rules combine freely. Contradictory demands are an error before the search begins
where that is decidable; otherwise all words are forbidden at some step, and the search reports it. The maximal length
of an output is the limit of its job, not a rule.

    MinimumLength        at least n tokens
    NoRepeatedNgram      no n-gram twice
    RepetitionPenalty    tokens that were written before are less likely
    ForcedPrefix         the output begins with given tokens
    CoveragePenalty      ranks outputs lower whose attention missed parts of the source
    ForbiddenWords       words that never occur                   (forbidden_words.py)
    MustOccur            terms that occur                         (required_terms.py)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sixfold.core.ids import EOS

_LEAST_COVERAGE = 1e-6  # its logarithm must be finite, so that outputs can still be compared


class Rule:
    """A rule that changes nothing. Its methods take the tokens written so far (`written`), without BOS."""

    needs_attention = False  # whether `final` needs the coverage, computed from cross-attention
    demands = False  # whether it `wants` words, for which a beam reserves hypotheses

    def describe(self) -> str:
        """The rule in a few words, for a message."""
        raise NotImplementedError

    def fresh(self) -> Rule:
        """The rule for one search: itself, or a copy without memory if it remembers the model's probabilities."""
        return self

    def check(self, limit: int) -> None:
        """Raise ValueError if it can't be satisfied with at most `limit` tokens."""

    def breaks(self, written: Sequence[int], *, over: bool) -> bool:
        """Whether these tokens violate the rule: as a complete text (`over`), or else however the text continues."""
        return False

    def apply(self, log_p: Tensor, written: Sequence[int], budget: int) -> None:
        """Change log_p (V,) of the next word, in place, if `budget` more tokens may be written before EOS."""

    def progress(self, written: Sequence[int]) -> int:
        """How many of the tokens that it demands have been written."""
        return 0

    def wants(self, written: Sequence[int]) -> Sequence[int]:
        """The next tokens that would be progress."""
        return ()

    def final(self, written: Sequence[int], coverage: Tensor | None) -> float:
        """A number ≤ 0 that is added to the score when complete outputs are ranked.

        coverage (n,) is the attention that each source token received, summed over the steps.
        """
        return 0.0


class MinimumLength(Rule):
    """No EOS before this many tokens."""

    def __init__(self, tokens: int):
        if tokens < 0:
            raise ValueError(f"an output can't have {tokens} tokens or more: give 0 or a positive number")
        self.tokens = tokens

    def describe(self) -> str:
        return f"at least {self.tokens} tokens"

    def check(self, limit: int) -> None:
        if self.tokens > limit:
            raise ValueError(f"the output must have at least {self.tokens} tokens, but at most {limit} may be written")

    def apply(self, log_p: Tensor, written: Sequence[int], budget: int) -> None:
        if len(written) < self.tokens:
            log_p[EOS] = -torch.inf


class NoRepeatedNgram(Rule):
    """No n-gram twice."""

    def __init__(self, n: int):
        if n < 1:
            raise ValueError(f"n tokens in a row: n must be at least 1, got {n}")
        self.n = n

    def describe(self) -> str:
        return "no token twice" if self.n == 1 else f"no {self.n} tokens in a row twice"

    def breaks(self, written: Sequence[int], *, over: bool) -> bool:
        rows = [tuple(written[i : i + self.n]) for i in range(len(written) - self.n + 1)]
        return len(set(rows)) < len(rows)

    def apply(self, log_p: Tensor, written: Sequence[int], budget: int) -> None:
        before = self.n - 1
        last = written[len(written) - before :] if before <= len(written) else None
        repeating = [written[i + before] for i in range(len(written) - before) if written[i : i + before] == last]
        if repeating:
            log_p[repeating] = -torch.inf


class RepetitionPenalty(Rule):
    """log p(w) · θ, that is p(w)^θ, for tokens w that were written before. (arXiv:1909.05858)

    The paper divides positive scores by θ and multiplies negative ones; log-probabilities are never positive.
    """

    def __init__(self, theta: float):
        if not theta > 0:
            raise ValueError(f"a repetition penalty must be positive (above 1 it penalises), got {theta}")
        self.theta = theta

    def describe(self) -> str:
        return f"log p of repeated tokens times {self.theta:g}"

    def apply(self, log_p: Tensor, written: Sequence[int], budget: int) -> None:
        if written:
            log_p[[*set(written)]] *= self.theta


class ForcedPrefix(Rule):
    """The output begins with these tokens. Their log-probability is part of its score."""

    def __init__(self, tokens: Sequence[int]):
        self.tokens = tuple(tokens)

    def describe(self) -> str:
        return f"begins with {len(self.tokens)} given tokens"

    def check(self, limit: int) -> None:
        if len(self.tokens) > limit:
            raise ValueError(f"the prefix has {len(self.tokens)} tokens, but at most {limit} may be written")

    def apply(self, log_p: Tensor, written: Sequence[int], budget: int) -> None:
        if len(written) < len(self.tokens):
            token = self.tokens[len(written)]
            only = log_p[token].clone()
            log_p.fill_(-torch.inf)
            log_p[token] = only


class CoveragePenalty(Rule):
    """β · Σᵢ log(min(coverageᵢ, 1)): ranks outputs lower whose attention missed source tokens. (arXiv:1609.08144)"""

    needs_attention = True

    def __init__(self, beta: float):
        if beta < 0:
            raise ValueError(f"a coverage penalty can't be negative, got {beta}")
        self.beta = beta

    def describe(self) -> str:
        return f"coverage penalty {self.beta:g}"

    def final(self, written: Sequence[int], coverage: Tensor | None) -> float:
        if coverage is None:
            raise ValueError("a coverage penalty needs attention weights, but this model has none")
        return self.beta * float(coverage.double().clamp(_LEAST_COVERAGE, 1).log().sum())
