"""Examples to batches: padded rows of ids, step after step, in an order that the seed and the epoch decide.

encoder_decoder   source = ids EOS       inputs = BOS ids         targets = ids EOS
decoder_only                             inputs = BOS ids[:-1]    targets = ids
encoder_only      source = ids, masked                            targets = ids where masked, else PAD
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sixfold.core.batch import Batch
from sixfold.core.ids import BOS, EOS, PAD
from sixfold.text.arrays import Array, Examples, Ragged
from sixfold.text.bucketing import StepTiles, deal, lengths_of, make_tiles, plan_epoch, tiles_per_step
from sixfold.text.tokenizer import CONTROLS, MASK

_CHOSEN, _MASKED, _REPLACED = 0.15, 0.8, 0.1  # of the words; of the chosen words; of these


class Batches:
    """The batches of a training run, without end. Its place in the data is two numbers."""

    def __init__(
        self,
        examples: Examples,
        kind: str,
        *,
        batch_tokens: int,
        seed: int,
        pieces: int = 1,
        vocab: int | None = None,
    ):
        self.examples, self.batch_tokens, self.seed, self.pieces = examples, batch_tokens, seed, pieces
        self.padding = 0.0  # share of PAD in what the model read in the last step
        self._make = _maker(examples, kind, vocab)
        self._lengths = lengths_of(examples, kind)
        self.tiles = tiles_per_step(self._lengths, batch_tokens)  # which a step is usually made of
        self.load_state({"epoch": 0, "index": 0})

    def next(self, which: Iterable[int] | None = None) -> list[Batch]:
        """The micro-batches of the next optimiser step: those of the pieces asked for, in that order; by default all.

        A piece is one micro-batch, or two to four where a step is made of more tiles than there are pieces: the same
        number for every piece. A micro-batch that has no row is one row whose targets are all PAD.
        """
        if self._index == len(self._steps):
            self.load_state({"epoch": self.epoch + 1, "index": 0})
        hands = deal(self._lengths, self._steps[self._index], self.pieces)
        self._index += 1
        wanted = range(self.pieces) if which is None else which
        batches = [self._make(rows, self.seed, self.epoch) for piece in wanted for rows in hands[piece]]
        self.padding = _padding(batches)
        return batches

    @property
    def steps(self) -> int:
        """Steps in this epoch."""
        return len(self._steps)

    def state(self) -> dict[str, int]:
        """The place in the data."""
        return {"epoch": self.epoch, "index": self._index}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Go to a place; what follows is the same as it was then."""
        epoch, index = state["epoch"], state["index"]
        generator = np.random.default_rng([self.seed, epoch])
        steps: list[StepTiles] = plan_epoch(
            self._lengths, self.examples.groups, self.batch_tokens, self.tiles, generator
        )
        if not 0 <= index <= len(steps):
            raise ValueError(f"there is no step {index} in an epoch of {len(steps)}: were other data prepared?")
        self.epoch, self._index, self._steps = epoch, index, steps


def in_order(examples: Examples, kind: str, batch_tokens: int, vocab: int | None = None) -> Iterator[Batch]:
    """Every row once, in batches that are always the same: rows of like length together."""
    lengths, make = lengths_of(examples, kind), _maker(examples, kind, vocab)
    for rows in make_tiles(lengths, np.arange(len(examples)), batch_tokens, np.random.default_rng(0)):
        yield make(rows, 0, 0)


def _maker(examples: Examples, kind: str, vocab: int | None) -> Callable[[Array, int, int], Batch]:
    """What makes a batch of (rows, seed, epoch)."""
    if kind == "encoder_only":
        if vocab is None:
            raise ValueError("masked prediction puts random words into the text: say how many words there are (vocab)")
        return lambda rows, seed, epoch: _masked_batch(examples, rows, _keys(seed, epoch, rows), vocab)
    if kind == "decoder_only":
        return lambda rows, seed, epoch: _window_batch(examples, rows)
    return lambda rows, seed, epoch: _pair_batch(examples, rows)


def _pair_batch(examples: Examples, rows: Array) -> Batch:
    assert examples.source is not None
    if not len(rows):
        return _batch(source=[[EOS]], inputs=[[BOS]], targets=[[PAD]])
    source, _ = _pad(examples.source, rows, close=True)
    targets, real = _pad(examples.target, rows, close=True)
    return _batch(source=source, inputs=_shift(targets, real), targets=targets)


def _window_batch(examples: Examples, rows: Array) -> Batch:
    if not len(rows):
        return _batch(inputs=[[BOS]], targets=[[PAD]])
    targets, real = _pad(examples.target, rows)
    return _batch(inputs=_shift(targets, real), targets=targets)


def _masked_batch(examples: Examples, rows: Array, keys: Array, vocab: int) -> Batch:
    if not len(rows):
        return _batch(source=[[EOS]], targets=[[PAD]])
    words, real = _pad(examples.target, rows)
    choice, fate, other = (_uniform(keys, words.shape[1], stream) for stream in range(3))
    choice[~real] = 2
    chosen = choice < _CHOSEN
    chosen |= choice == choice.min(1, keepdims=True)  # at least one word of each row, so that it teaches something
    random = len(CONTROLS) + (other * (vocab - len(CONTROLS))).astype(np.int64)
    instead = np.where(fate < _MASKED, MASK, np.where(fate < _MASKED + _REPLACED, random, words))
    return _batch(source=np.where(chosen, instead, words), targets=np.where(chosen, words, PAD))


def _pad(ragged: Ragged, rows: Array, close: bool = False) -> tuple[Array, Array]:
    """Rows (R, L), filled up with PAD, and which of the cells are real; each with EOS at its end if `close`."""
    ids, lengths = ragged.gather(rows)
    columns = np.arange(int(lengths.max()) + close)
    text = columns < lengths[:, None]
    padded = np.full(text.shape, PAD, np.int64)
    padded[text] = ids
    if not close:
        return padded, text
    padded[np.arange(len(rows)), lengths] = EOS
    return padded, columns <= lengths[:, None]


def _shift(targets: Array, real: Array) -> Array:
    """What a decoder has read before it writes each target."""
    inputs = np.empty_like(targets)
    inputs[:, 0] = BOS
    inputs[:, 1:] = targets[:, :-1]
    inputs[~real] = PAD
    return inputs


def _batch(**ids: Any) -> Batch:
    return Batch(**{name: torch.from_numpy(np.asarray(value, np.int64)) for name, value in ids.items()})


def _padding(batches: Sequence[Batch]) -> float:
    """Share of PAD in what is read."""
    read = [ids for batch in batches for ids in (batch.source, batch.inputs) if ids is not None]
    return sum(int((ids == PAD).sum()) for ids in read) / max(1, sum(ids.numel() for ids in read))


def _keys(seed: int, epoch: int, rows: Array) -> Array:
    """64 random bits for each row (R, 1), of which all that is random about it follows."""
    start = np.array([seed % (1 << 64)], np.uint64)
    return _mix(_mix(_mix(start) + np.uint64(epoch)) + rows.astype(np.uint64))[:, None]


def _uniform(keys: Array, width: int, stream: int) -> Array:
    """Numbers in [0, 1) for each cell (R, width); they do not depend on which rows stand together."""
    bits = _mix(_mix(keys + np.uint64(stream)) + np.arange(width, dtype=np.uint64))
    return (bits >> np.uint64(11)) * 2.0**-53


def _mix(bits: Array) -> Array:
    """A step of the generator SplitMix64 (Steele, Lea and Flood 2014): its output looks random for any input."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
