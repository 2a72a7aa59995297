"""BPE dropout (1910.13267) on ids: in each epoch, some merges of the training text are undone.

    epoch 0    under stand able        epoch 1    under st and able        epoch 2    under stand ab le

The paper drops merges while it builds words from letters. Here each piece is, with some probability, divided into the
two pieces from which it was merged, and these again. No text is tokenised again, and the pieces of a row depend on the
seed, the epoch and the row alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sixfold.core.ids import PAD
from sixfold.text.arrays import Array, Examples, Ragged
from sixfold.text.rows import random_keys, uniform_at
from sixfold.text.tokenizer import Tokenizer, Tokenizers

_ROWS = 50_000  # rows that are divided together, to bound memory
_SIDES = ("source", "target")
_FIRST_STREAM = 100  # of random numbers; the tasks use the first ones


class BpeDropout:
    """Makes the training text of each epoch."""

    def __init__(self, tokenizers: Tokenizers, probability: float, *, seed: int, longest: int):
        self._probability, self._seed, self._longest = probability, seed, longest
        self._parents = {side: parents(getattr(tokenizers, side)) for side in _SIDES}

    def of_epoch(self, examples: Examples, epoch: int) -> Examples:
        """The text in other pieces. A row that would get more than `longest` of them stays as it is."""
        source, target = (self._side(getattr(examples, side), side, epoch) for side in _SIDES)
        assert target is not None
        return Examples(source, target, examples.groups, examples.columns)

    def _side(self, text: Ragged | None, side: str, epoch: int) -> Ragged | None:
        if text is None:
            return None
        ids, lengths = zip(*self._chunks(text, side, epoch), strict=True)
        return Ragged(np.concatenate(ids), np.concatenate([[0], *lengths]).cumsum())

    def _chunks(self, text: Ragged, side: str, epoch: int) -> Iterator[tuple[Array, Array]]:
        """The ids and lengths of the rows, some thousands of rows at a time."""
        for first in range(0, len(text), _ROWS):
            rows = np.arange(first, min(first + _ROWS, len(text)))
            keys = random_keys(self._seed, epoch, rows)[:, 0] + np.uint64(_SIDES.index(side))
            ids, lengths = text.gather(rows)
            chance = np.full(len(rows), self._probability)
            _, divided_lengths = divided(ids, lengths, self._parents[side], keys, chance)
            chance[divided_lengths > self._longest] = 0.0
            pieces, lengths = divided(ids, lengths, self._parents[side], keys, chance)
            yield pieces.astype(text.ids.dtype), lengths


def parents(tokenizer: Tokenizer) -> Array:
    """The two ids from which each id was merged (V, 2); PAD for an id that was not merged."""
    found = np.full((len(tokenizer), 2), PAD, np.int64)
    for left, right, merged in tokenizer.merges():
        if found[merged, 0] == PAD:  # a piece may be the result of several merges: the first one is the most frequent
            found[merged] = left, right
    return found


def divided(ids: Array, lengths: Array, parents: Array, keys: Array, chances: Array) -> tuple[Array, Array]:
    """Divide each piece with the chance of its row, and then its halves with the same chance.

    `ids` has the rows one after the other. → the new ids, and the new lengths of the rows
    """
    rows, new = np.repeat(np.arange(len(lengths)), lengths), np.ones(len(ids), bool)
    for stream in range(_FIRST_STREAM, _FIRST_STREAM + len(parents)):
        lengths = np.bincount(rows, minlength=len(keys))
        positions = np.arange(len(ids)) - (np.cumsum(lengths) - lengths)[rows]
        new &= (parents[ids, 0] != PAD) & (uniform_at(keys[rows], positions, stream) < chances[rows])
        if not new.any():
            break
        times = 1 + new
        left, halves = np.cumsum(times)[new] - 2, parents[ids[new]]
        ids, rows, new = np.repeat(ids, times), np.repeat(rows, times), np.repeat(new, times)
        ids[left], ids[left + 1] = halves[:, 0], halves[:, 1]
    return ids, lengths
