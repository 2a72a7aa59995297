"""Batches of examples for each step, in an order that depends on the seed and the epoch. A task collates each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sixfold.core.batch import Batch
from sixfold.core.ids import PAD
from sixfold.text.arrays import Array, Examples
from sixfold.text.bucketing import Lengths, StepTiles, deal, make_tiles, plan_epoch, tiles_per_step
from sixfold.text.rows import Rows, random_keys

Collate = Callable[[Rows], Batch]
OfEpoch = Callable[[int], tuple[Examples, Lengths]]  # epoch → the text of that epoch
LARGER_SIDE, TARGET_SIDE = "larger side", "target side"  # counted by `batch_tokens`; TARGET_SIDE in runs of version 0.1


class Batches:
    """The endless batches of a training run. Its position in the data is the epoch and the step within it."""

    def __init__(
        self,
        examples: Examples,
        lengths: Lengths,
        collate: Collate,
        *,
        batch_tokens: int,
        seed: int,
        pieces: int = 1,
        words: int = 0,
        of_epoch: OfEpoch | None = None,
    ):
        self.batch_tokens, self.seed, self.pieces = batch_tokens, seed, pieces
        self.padding = 0.0  # share of PAD in the inputs of the last step
        self._collate, self._words = collate, words
        self._of_epoch = of_epoch or (lambda epoch: (examples, lengths))
        self.load_state({"epoch": 0, "index": 0, "budget": LARGER_SIDE})

    def next(self, which: Iterable[int] | None = None) -> list[Batch]:
        """The micro-batches of the next optimiser step: those of the pieces `which`, in that order; by default all.

        A piece is one micro-batch, or two to four if a step has more tiles than there are pieces: the same number for
        every piece. A micro-batch without rows is given one row that does not count.
        """
        if self._index == len(self._steps):
            self._go_to(self.epoch + 1, 0)
        hands = deal(self._lengths, self._steps[self._index], self.pieces)
        self._index += 1
        wanted = range(self.pieces) if which is None else which
        batches = [self._make(rows) for piece in wanted for rows in hands[piece]]
        self.padding = _padding(batches)
        return batches

    def _make(self, index: Array) -> Batch:
        return self._collate(Rows(self.examples, index, random_keys(self.seed, self.epoch, index), self._words))

    @property
    def steps(self) -> int:
        """Steps in this epoch."""
        return len(self._steps)

    def state(self) -> dict[str, Any]:
        """The position in the data, and the side that `batch_tokens` counts."""
        return {"epoch": self.epoch, "index": self._index, "budget": self._budget}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go to a position: the batches from there on are the same as before."""
        self._budget = state.get("budget", TARGET_SIDE)
        self._go_to(state["epoch"], state["index"])

    def _go_to(self, epoch: int, index: int) -> None:
        self.examples, sides = self._of_epoch(epoch)
        self._lengths = sides.counting_target_only() if self._budget == TARGET_SIDE else sides
        self.tiles = tiles_per_step(self._lengths, self.batch_tokens)  # the usual number in a step
        generator = np.random.default_rng([self.seed, epoch])
        steps: list[StepTiles] = plan_epoch(
            self._lengths, self.examples.groups, self.batch_tokens, self.tiles, generator
        )
        if not 0 <= index <= len(steps):
            raise ValueError(f"there is no step {index} in an epoch of {len(steps)}: were other data prepared?")
        self.epoch, self._index, self._steps = epoch, index, steps


def in_order(
    examples: Examples, lengths: Lengths, collate: Collate, batch_tokens: int, words: int = 0
) -> Iterator[Batch]:
    """Every row once, in batches of rows of similar length that are always the same."""
    for index in make_tiles(lengths, np.arange(len(examples)), batch_tokens, np.random.default_rng(0)):
        yield collate(Rows(examples, index, random_keys(0, 0, index), words))


def _padding(batches: Sequence[Batch]) -> float:
    """The share of PAD in the inputs."""
    read = [ids for batch in batches for ids in (batch.source, batch.inputs) if ids is not None]
    return sum(int((ids == PAD).sum()) for ids in read) / max(1, sum(ids.numel() for ids in read))
