"""The one thing a search needs: from the newest tokens of each row to scores of all next words.

    step(ids, state) → Step(scores, log_z, state, attention)        log p(word) = scores[word] − log_z

A search knows this and nothing of the model. A state belongs to rows, from which it can choose with
`select`, and which it can `join`; each of these, and a step, uses up the state it was given, and hands on the next.
`ModelStep` makes a step of a model; in a test, a table of probabilities will do.

Letters: B rows, L new tokens, V words, S sentences, n source length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from sixfold.core.forms import SoftmaxForm
from sixfold.core.ids import PAD
from sixfold.core.memory import concatenate
from sixfold.core.parts import form_of
from sixfold.core.state import Cache
from sixfold.core.tap import Tap
from sixfold.models.model import Model

PART = 384  # source tokens that a CPU reads at once


class State(Protocol):
    """What a step remembers of each row."""

    light: bool  # whether to select costs next to nothing

    def select(self, rows: Tensor) -> Self:
        """The state of these rows, (S, w): those of a line belong to one sentence."""

    def join(self, other: Self, free: Sequence[int]) -> Self:
        """The sentences of both: the other's take these places of this one's, and further ones after all."""

    def release(self) -> None:
        """The search has ended: give buffers back for reuse. The state can't be used any more."""


class Step(NamedTuple):
    """What is known after reading the newest tokens."""

    scores: Tensor  # (B, V): of every word that may come next
    log_z: Tensor  # (B,): what to subtract, for log-probabilities
    state: Any  # a State, for the next step
    attention: Tensor | None = None  # (B, n): where in the source the newest token looked, if asked for


class StepFunction(Protocol):
    device: torch.device

    def begin(self, sources: Sequence[Sequence[int]]) -> Any:
        """The state before the first step, when the sources are read."""

    def __call__(self, ids: Tensor, state: Any) -> Step:
        """Read tokens (B, L). The scores are the caller's own, to change as it likes, until the next step."""


class ModelStep:
    """The step of an encoder-decoder, or of a decoder alone.

    `ids` (B, L) are the tokens that are new in each row; rows of different length are padded at the
    left, so that the newest stands last. With `watch="decoder.3.cross"`, each step says where this
    part looked, as the mean over its heads.
    """

    def __init__(self, model: Model, watch: str | None = None):
        if not model.writes_text:
            raise ValueError(f"an {model.kind} model writes no text")
        if watch is not None and watch not in model.maps:
            raise ValueError(f"there is no attention {watch!r} to watch; there are {', '.join(model.maps)}")
        self.model: Any = model
        self.watch = watch
        self.device = next(model.parameters()).device

    def begin(self, sources: Sequence[Sequence[int]]) -> Cache:
        """The state before the first step. A decoder alone has no sources: each is empty."""
        if not self.model.reads_source:
            return Cache(rows=len(sources), device=self.device)
        parts = parts_of(sources) if self.device.type == "cpu" else [sources]
        return Cache(concatenate([self.model.encode(padded(part, self.device)) for part in parts]))

    def __call__(self, ids: Tensor, state: Cache) -> Step:
        tap = None if self.watch is None else Tap(self.watch)
        x = self.model.decode(ids, cache=state, tap=tap)[:, -1]
        scores, log_z = next_words(self.model, x)
        attention = None if tap is None or self.watch is None else tap[self.watch][:, :, -1].mean(1)
        return Step(scores, log_z, state, attention)


def next_words(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """States (B, D) → scores (B, V) and the logarithm of their normaliser (B,).

    A plain softmax need not be normalised to be searched. Other heads have no logits, but only
    log-probabilities, whose normaliser is 1.
    """
    if not isinstance(form_of(model.head), SoftmaxForm):
        log_probs = model.log_probs(x)
        return log_probs, log_probs.new_zeros(log_probs.shape[0])
    logits = model.roles["output"].logits(x)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits, logits.logsumexp(-1)


def parts_of(sources: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
    """Neighbours that are read together: no more than a CPU's caches can hold the states of."""
    first, longest = 0, 0
    for last, source in enumerate(sources):
        longest = max(longest, len(source))
        if last > first and longest * (last + 1 - first) > PART:
            yield sources[first:last]
            first, longest = last, len(source)
    yield sources[first:]


def padded(rows: Sequence[Sequence[int]], device: torch.device, side: str = "right") -> Tensor:
    """Rows of ids → (B, L), filled up with PAD at one side."""
    length = max(map(len, rows))
    fill = [[PAD] * (length - len(row)) for row in rows]
    lines = [[*row, *pad] if side == "right" else [*pad, *row] for row, pad in zip(rows, fill, strict=True)]
    return torch.tensor(lines, dtype=torch.long, device=device)
