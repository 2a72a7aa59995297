"""What the plan knows of a text (`Facts`), and what a model of some size costs (`Size`)."""

from __future__ import annotations

from typing import NamedTuple


class Facts(NamedTuple):
    """Properties of the prepared training text. A text without a source has 0 source tokens."""

    rows: int  # pairs, texts, or windows of a language model
    source_tokens: int
    target_tokens: int
    vocabulary: int  # words that the head can predict
    pairs: bool = False  # whether a row is a source and a target
    labels: bool = False  # whether the model predicts a label in place of words
    valid_rows: int = 0  # of the validation text; 0 without one
    trained: bool = False  # whether the model begins with trained weights
    repeated: float = 0.0  # share of the rows that occurred before in the text
    rotates: bool = True  # whether rotary positions go with the modifications that are given
    work: float = 1.0  # time of a step of the task; 1: each word is predicted once

    @property
    def tokens(self) -> int:
        """Tokens of an epoch, on the side that has more: a batch counts these, and the end of each row."""
        return max(self.source_tokens, self.target_tokens, 1) + self.rows

    @property
    def distinct_tokens(self) -> int:
        """Tokens of an epoch in rows that are not repetitions."""
        return max(round(self.tokens * (1 - self.repeated)), 1)

    @property
    def length(self) -> float:
        """Mean tokens of a row."""
        return self.tokens / max(self.rows, 1)


class Size(NamedTuple):
    """One size of model, as far as its cost depends on it."""

    d_model: int
    layers: int  # of each stack
    d_ff: int
    pairs: bool = False  # encoder and decoder, not one stack

    def parameters(self) -> int:
        """Weights of all layers: 4d² of an attention (a decoder layer has two), 2·d·d_ff of a feed-forward layer."""
        attention, inner = 4 * self.d_model**2, 2 * self.d_model * self.d_ff
        return self.layers * (3 * attention + 2 * inner if self.pairs else attention + inner)

    def operations(self, facts: Facts) -> float:
        """Floating-point operations of an epoch: forward, and twice as many backward."""
        d, inner = self.d_model, 2 * self.d_model * self.d_ff
        seen = 2 * facts.length * d  # products of a query with all keys, and of its weights with all values
        target = facts.target_tokens + facts.rows
        work = target * self.layers * (4 * d**2 + seen + inner)
        if self.pairs:
            source = facts.source_tokens + facts.rows
            work += source * self.layers * (6 * d**2 + seen + inner) + target * self.layers * (2 * d**2 + seen)
        return 6 * (work + (0 if facts.labels else target * d * facts.vocabulary))

    def update(self) -> float:
        """Floating-point operations of a step of Muon: 3·(4m²n + 2m³) for each m × n matrix, m ≤ n."""
        d, (m, n) = self.d_model, sorted((self.d_model, self.d_ff))
        square, inner = 18 * d**3, 3 * (4 * m**2 * n + 2 * m**3)
        return self.layers * (12 * square + 4 * inner if self.pairs else 4 * square + 2 * inner)
