"""Windows of a text in their order: parallel streams for training, one stream for validation.

A language model's rows are windows of one text. Training divides them into streams of equal length, and each step takes
the next window of every stream:

    rows      0 1 2 3 4 5 6     three streams    step 0: 0 2 4    step 1: 1 3 5

Up to as many rows as there are streams, less one, are left over; in the next epoch the streams begin one row later. A
window begins with the last word of the one before it, where other batches begin with BOS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from sixfold.core.batch import Batch
from sixfold.text.arrays import Array, Examples
from sixfold.text.rows import Rows, random_keys

Collate = Callable[[Rows], Batch]


class Streams:
    """The endless batches of a training run that reads its text in order. Its position is the epoch and the step."""

    def __init__(self, examples: Examples, collate: Collate, *, batch_tokens: int, seed: int, words: int = 0):
        if len(examples.groups) > 1 or examples.groups[0].weight != 1:
            raise ValueError("carry_state reads a text once and in order: leave out the weights of data.train")
        self.examples, self.seed = examples, seed
        self.padding = 0.0  # share of PAD in the inputs of the last step
        self._collate, self._words = collate, words
        window = int(examples.target.lengths.max())
        self.rows = min(max(batch_tokens // window, 1), len(examples))
        self.steps = len(examples) // self.rows  # in an epoch
        self.epoch = self._index = 0

    def next(self, which: Iterable[int] | None = None) -> list[Batch]:
        """The batch of the next step."""
        if self._index == self.steps:
            self.epoch, self._index = self.epoch + 1, 0
        left_over = len(self.examples) - self.rows * self.steps
        first = self.epoch % (left_over + 1) + self.steps * np.arange(self.rows)
        index = first + self._index
        batch = self._collate(Rows(self.examples, index, random_keys(self.seed, self.epoch, index), self._words))
        batch = continued(batch, self.examples, index) if self._index else batch
        self._index += 1
        self.padding = 1 - batch.counts["words"] / batch.inputs.numel()
        return [batch]

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "index": self._index}

    def load_state(self, state: Mapping[str, Any]) -> None:
        epoch, index = state["epoch"], state["index"]
        if not 0 <= index <= self.steps:
            raise ValueError(f"there is no step {index} in an epoch of {self.steps}: were other data prepared?")
        self.epoch, self._index = epoch, index


def in_one_stream(examples: Examples, collate: Collate, words: int = 0) -> Iterator[Batch]:
    """Every row once, in order, as a batch of its own."""
    for row in range(len(examples)):
        index = np.array([row])
        batch = collate(Rows(examples, index, random_keys(0, 0, index), words))
        yield continued(batch, examples, index) if row else batch


def continued(batch: Batch, examples: Examples, index: Array) -> Batch:
    """The batch of these rows, whose inputs begin with the last word of the row before."""
    inputs = batch.inputs.clone()
    before = examples.target.ids[examples.target.offsets[index] - 1]
    inputs[:, 0] = inputs.new_tensor(before.astype(np.int64))
    return batch.replaced(inputs=inputs)
