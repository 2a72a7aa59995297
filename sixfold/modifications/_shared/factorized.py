"""Factorised tables: a narrow table, then a matrix up to the model's width."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from sixfold.core import forms
from sixfold.core.init import Normal, linear, parameter
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.spec.spec import Spec


class Factors(ModelPart):
    """E = A B, A (words, inner), B (inner, D); A alone if not `project`. In: √D · A[id] B. Out: (x Bᵀ) Aᵀ.

    A is N(0, 1/D) and B is N(0, 1/inner), so that E is N(0, 1/D), as a plain table.
    """

    def __init__(self, words: int, inner: int, width: int, project: bool = True):
        super().__init__()
        self.scale = math.sqrt(width)
        self.weight = parameter((words, inner), Normal(width**-0.5))
        self.projection = linear(inner, width, bias=False) if project else None

    def forward(self, ids: Tensor) -> Tensor:
        vectors = F.embedding(ids, self.weight)
        return self.scale * (vectors if self.projection is None else self.projection(vectors))

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x if self.projection is None else x @ self.projection.weight, self.weight)

    def form(self) -> forms.EmbeddingForm:
        return forms.EmbeddingForm(self.weight, None if self.projection is None else self.projection.weight)


def factors(spec: Spec, place: Place, inner: int) -> Factors:
    return Factors(spec.sizes.vocabulary(place.stack), inner, spec.sizes.d_model)


def check_inner(name: str, inner: int) -> None:
    if inner < 1:
        raise ValueError(f"{name}: inner must be at least 1, got {inner}")


def vocabularies(sizes: Sizes) -> list[int]:
    """The number of words of each vocabulary."""
    return [sizes.vocab] if sizes.joint else [sizes.source_vocab, sizes.target_vocab]


def factor_parameters(sizes: Sizes, inner: int) -> int:
    """Additional parameters relative to a full table for each vocabulary."""
    return sum(words * (inner - sizes.d_model) + inner * sizes.d_model for words in vocabularies(sizes))
