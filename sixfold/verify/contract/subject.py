"""The small models on which the contract is checked, and random words as their input.

Letters: B rows, L tokens, D model width, S source rows, n source length.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sixfold.core.batch import Batch
from sixfold.core.ids import PAD
from sixfold.core.place import Sizes
from sixfold.core.state import Cache
from sixfold.models.build import MODELS, build

VOCAB = 50
SMALL = Sizes(d_model=16, d_ff=32, heads=2, encoder_layers=2, decoder_layers=2, vocab=VOCAB, dropout=0.0)
_CONTROL = 3  # ids below it are PAD, BOS and EOS, which are not words


class Subject:
    """Small models of one kind with the same modifications, in evaluation mode and in float64."""

    def __init__(self, kind: str, modifications: Iterable[Any] = (), sizes: Sizes = SMALL):
        self.kind, self.modifications, self.sizes = kind, tuple(modifications), replace(sizes, dropout=0.0)
        self.type = MODELS[kind]
        if min(map(sizes.vocabulary, ("encoder", "decoder"))) < VOCAB:
            raise ValueError(f"the small models need a vocabulary of at least {VOCAB} words")

    @classmethod
    def of(cls, model: Any) -> Subject:
        """A trained model, as a copy in float64, for checks that only read `subject.model`."""
        made = cls.__new__(cls)
        made.kind, made.modifications, made.sizes = model.kind, model.assembly.modifications, model.sizes
        made.type, made.model = type(model), copy.deepcopy(model).to("cpu", torch.float64).requires_grad_(True).eval()
        return made

    @cached_property
    def model(self) -> Any:
        """One model for all checks that do not change it."""
        return self.moved()

    @cached_property
    def dropping(self) -> Any:
        """A model whose rate of dropout is a half."""
        return self.moved(dropout=0.5)

    def fresh(self, *beside: Any, dtype: torch.dtype = torch.float64, **sizes: Any) -> Any:
        """A new model, with further modifications and other sizes."""
        wishes = (*self.modifications, *beside)
        return build(self.sized(**sizes), wishes, self.kind, device="cpu", seed=0).to(dtype).eval()

    def moved(self, *beside: Any, dtype: torch.dtype = torch.float64, **sizes: Any) -> Any:
        """The same model with slightly changed parameters: an initial gain of 0 would hide the effect of a part."""
        return moved(self.fresh(*beside, dtype=dtype, **sizes))

    def sized(self, **changes: Any) -> Sizes:
        return replace(self.sizes, **changes)


@torch.no_grad()
def moved(model: Any) -> Any:
    """Change every parameter a little."""
    for p in model.parameters():
        p += 0.05 * torch.randn(p.shape, dtype=p.dtype, generator=seeded(4))
    return model


# Words -------------------------------------------------------------------------------------------------


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_ids(rows: int, length: int, generator: torch.Generator, words: int = VOCAB) -> Tensor:
    """Words: neither PAD nor BOS nor EOS. (rows, length)"""
    return torch.randint(_CONTROL, words, (rows, length), generator=generator)


def random_rows(lengths: Iterable[int], generator: torch.Generator, words: int = VOCAB) -> list[Tensor]:
    """One row of words, (length,), for each length."""
    return [random_ids(1, length, generator, words)[0] for length in lengths]


def words_of(model: Any) -> int:
    """The number of words that are tried: a trained model may have fewer than the small ones."""
    return min(VOCAB, *map(model.sizes.vocabulary, ("encoder", "decoder")))


def pad(rows: Sequence[Tensor], side: str = "right") -> Tensor:
    """Rows of different length → (B, L), filled up with PAD."""
    return pad_sequence(list(rows), batch_first=True, padding_value=PAD, padding_side=side)


# A pass through a model, whatever its kind ---------------------------------------------------------------


def states_alone(model: Any, source: Tensor, ids: Tensor) -> Tensor:
    """The states (L, D) of one row (L,), without company and without a cache."""
    return states_of(model, ids[None], source=source[None])[0]


def states_of(model: Any, ids: Tensor, real: Tensor | None = None, source: Tensor | None = None, **rest: Any) -> Tensor:
    """The states (B, L, D) of the stack that writes, or of the only one."""
    if not model.writes_text:
        return model.encode(ids, real, **rest)
    if not model.reads_source:
        return model.decode(ids, real, **rest)
    source = random_ids(1, 4, seeded(99), words_of(model)).expand(ids.shape[0], -1) if source is None else source
    return model.decode(ids, model.encode(source), real, **rest)


def states_of_encoder(model: Any, ids: Tensor, **rest: Any) -> Tensor:
    """The states (S, n, D) of an encoder-decoder's encoder."""
    return model.encode(ids, **rest).states[-1]


def fresh_cache(model: Any, sources: Sequence[Tensor]) -> Cache:
    return Cache(model.encode(pad(sources))) if model.reads_source else Cache(rows=len(sources))


def batch_of(model: Any, rows: Sequence[Tensor], sources: Sequence[Tensor]) -> Batch:
    """A training batch of rows that are one token too long, and of their sources."""
    if model.sizes.classes:
        return Batch(source=pad(rows), targets=torch.stack([row[0] % model.sizes.classes for row in rows]))
    if not model.writes_text:
        return Batch(source=pad(rows), targets=pad([row.flip(0) for row in rows]))
    inputs, targets = pad([row[:-1] for row in rows]), pad([row[1:] for row in rows])
    return Batch(source=pad(sources) if model.reads_source else None, inputs=inputs, targets=targets)
