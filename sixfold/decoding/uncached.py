"""A step without a cache: every step reads the source and the complete output so far.

It is slow. The other steps are compared with it: by the tests, and by `sixfold verify` on a user's own model.

Letters: B rows, V words, S sentences, w hypotheses of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sixfold.core.ids import PAD
from sixfold.decoding.step import Step, padded


@dataclass
class UncachedState:
    """The tokens that were read, and nothing that was computed from them."""

    sources: list[tuple[int, ...]]  # S
    rows: list[tuple[int, ...]]  # B = S·w: the tokens of each hypothesis
    width: int = 1  # w

    light: ClassVar[bool] = False

    @classmethod
    def of(cls, sources: Sequence[Sequence[int]]) -> UncachedState:
        return cls([tuple(source) for source in sources], [()] * len(sources))

    @property
    def source_of_row(self) -> list[tuple[int, ...]]:
        return [source for source in self.sources for _ in range(self.width)]

    def read(self, ids: Tensor) -> UncachedState:
        """The state after new tokens (B, L), which may be padded."""
        new = [tuple(id_ for id_ in row if id_ != PAD) for row in ids.tolist()]
        rows = [row + more for row, more in zip(self.rows, new, strict=True)]
        return UncachedState(self.sources, rows, self.width)

    def select(self, rows: Tensor) -> UncachedState:
        chosen = rows.tolist()
        sentences = [{row // self.width for row in line} for line in chosen]
        assert all(len(each) == 1 for each in sentences), "a line selects rows of several sentences"
        sources = [self.sources[sentence] for (sentence,) in sentences]
        return UncachedState(sources, [self.rows[row] for line in chosen for row in line], rows.shape[1])

    def join(self, other: UncachedState, free: Sequence[int]) -> UncachedState:
        width, sources, rows = self.width, list(self.sources), list(self.rows)
        for number, index in enumerate(free):
            sources[index] = other.sources[number]
            rows[index * width : (index + 1) * width] = other.rows[number * width : (number + 1) * width]
        return UncachedState(sources + other.sources[len(free) :], rows + other.rows[len(free) * width :], width)

    def release(self) -> None:
        """There are no buffers to give back."""


class UncachedStep:
    """The step of any model that writes text."""

    def __init__(self, model: Any):
        self.model, self.device = model, next(model.parameters()).device

    def begin(self, sources: Sequence[Sequence[int]]) -> UncachedState:
        return UncachedState.of(sources)

    def __call__(self, ids: Tensor, state: UncachedState) -> Step:
        state = state.read(ids)
        memory = [self.model.encode(padded(state.source_of_row, self.device))] if self.model.reads_source else []
        last = torch.tensor([max(len(row) - 1, 0) for row in state.rows], device=self.device)
        x = self.model.decode(padded([row or (PAD,) for row in state.rows], self.device), *memory)
        log_probs_BV = self.model.log_probs(x[torch.arange(len(last), device=self.device), last])
        return Step(log_probs_BV, log_probs_BV.new_zeros(len(last)), state)
