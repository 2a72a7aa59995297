"""Rows of a batch: padding, shifting, and random numbers that depend only on the row. torch is not imported."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sixfold.core.ids import BOS, EOS, PAD
from sixfold.text.arrays import Array, Examples, Ragged


@dataclass(frozen=True)
class Rows:
    """The rows that a task collates. There may be none: then the batch has one row that does not count."""

    examples: Examples
    index: Array  # (R,): indices of the rows
    keys: Array  # (R, 1): 64 random bits for each row, the seed of all its randomness
    words: int  # size of the vocabulary


def pad(ragged: Ragged, index: Array, add_eos: bool = False) -> tuple[Array, Array]:
    """Rows (R, L) padded with PAD, and a mask of the cells that are not padding; `add_eos` appends EOS."""
    ids, lengths = ragged.gather(index)
    columns = np.arange(int(lengths.max()) + add_eos)
    text = columns < lengths[:, None]
    padded = np.full(text.shape, PAD, np.int64)
    padded[text] = ids
    if not add_eos:
        return padded, text
    padded[np.arange(len(index)), lengths] = EOS
    return padded, columns <= lengths[:, None]


def shift(targets: Array, real: Array) -> Array:
    """The decoder's inputs: the targets shifted right, after BOS."""
    inputs = np.empty_like(targets)
    inputs[:, 0] = BOS
    inputs[:, 1:] = targets[:, :-1]
    inputs[~real] = PAD
    return inputs


def random_keys(seed: int, epoch: int, index: Array) -> Array:
    """64 random bits for each row (R, 1), independent of the other rows in the batch."""
    start = np.array([seed % (1 << 64)], np.uint64)
    return _mix(_mix(_mix(start) + np.uint64(epoch)) + index.astype(np.uint64))[:, None]


def uniform(keys: Array, width: int, stream: int) -> Array:
    """Random numbers in [0, 1) for each cell (R, width); each `stream` is independent."""
    return uniform_at(keys, np.arange(width), stream)


def uniform_at(keys: Array, positions: Array, stream: int) -> Array:
    """The same for cells at these positions in their rows; `keys` has the key of each one's row."""
    bits = _mix(_mix(keys + np.uint64(stream)) + positions.astype(np.uint64))
    return (bits >> np.uint64(11)) * 2.0**-53


def _mix(bits: Array) -> Array:
    """A step of the generator SplitMix64 (Steele, Lea and Flood 2014): its output looks random for any input."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
