"""A model is a value: its sizes, and who fills each slot.

A modification (registry.py) is a function from one Spec to another; assemble.py checks what comes out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sixfold import transformer as vanilla

_LARGEST = 100_000_000  # of any size


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large a model is. Give `vocab` for one joint vocabulary, or `source_vocab` and `target_vocab`.

    `replace(sizes, d_model=…)` keeps d_head; say d_head=0 with it to have it worked out anew.
    """

    d_model: int = 512
    d_ff: int = 2048
    heads: int = 8
    d_head: int = 0  # 0: d_model / heads
    encoder_layers: int = 6
    decoder_layers: int = 6
    vocab: int = 0
    source_vocab: int = 0
    target_vocab: int = 0
    classes: int = 0  # of an encoder-only model that classifies whole sequences
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("d_model", "d_ff", "heads", "encoder_layers", "decoder_layers"):
            _need_whole(name, getattr(self, name), at_least=1)
        for name in ("d_head", "vocab", "source_vocab", "target_vocab", "classes"):
            _need_whole(name, getattr(self, name), at_least=0)
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be a number, at least 0 and less than 1, got {self.dropout!r}")
        if self.d_head == 0 and self.d_model % self.heads:
            raise ValueError(
                f"d_model {self.d_model} does not divide into {self.heads} heads; "
                f"choose heads that divide it, or give d_head"
            )
        object.__setattr__(self, "d_head", self.d_head or self.d_model // self.heads)
        if self.vocab and (self.source_vocab or self.target_vocab):
            raise ValueError(
                f"got vocab {self.vocab} together with source_vocab {self.source_vocab} and target_vocab "
                f"{self.target_vocab}; give vocab alone for a joint vocabulary, the other two for separate ones"
            )
        if not self.vocab and not (self.source_vocab and self.target_vocab):
            raise ValueError(
                f"give vocab, the number of words, or both source_vocab and target_vocab for separate ones; "
                f"got source_vocab {self.source_vocab} and target_vocab {self.target_vocab}"
            )

    @property
    def joint(self) -> bool:
        """Whether source and target share one vocabulary."""
        return self.vocab > 0

    def vocabulary(self, stack: str) -> int:
        """How many words a stack reads or writes."""
        return self.vocab or (self.source_vocab if stack == "encoder" else self.target_vocab)


def _need_whole(name: str, value: Any, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")
    if value > _LARGEST:
        raise ValueError(f"{name} must be at most {_LARGEST:,}, got {value:,}")


@dataclass(frozen=True)
class Place:
    """Where a part is built: `only` is the stack of a model that has just one."""

    stack: Literal["encoder", "decoder", "only"]
    layers: int
    causal: bool
    layer: int | None = None  # None: the part serves the whole stack
    name: str = ""

    def at(self, layer: int) -> Place:
        return replace(self, layer=layer)

    def named(self, name: str) -> Place:
        return replace(self, name=name)


Part = Callable[["Spec", Place], Any]  # → an nn.Module; Spec says how each is called


def as_built(model: nn.Module, spec: Spec) -> None:
    """The weights stay as the parts made them."""


def nothing(model: nn.Module, step: int, steps: int) -> None:
    """Nothing happens between optimiser steps."""


@dataclass(frozen=True)
class Group:
    """Parameters that the optimiser treats alike."""

    name: str
    parameters: list[nn.Parameter]
    decay: bool
    rate: float = 1.0  # a factor on the learning rate


def by_shape(model: nn.Module) -> list[Group]:
    """Matrices decay; vectors and embedding tables do not."""
    tables = {id(p) for p in model.tables.parameters()}  # type: ignore[union-attr]
    decays = {True: [], False: []}  # type: dict[bool, list[nn.Parameter]]
    for p in model.parameters():
        decays[p.dim() >= 2 and id(p) not in tables].append(p)
    return [Group("matrices", decays[True], decay=True), Group("vectors and tables", decays[False], decay=False)]


def set_apart(model: nn.Module, group: Group) -> list[Group]:
    """The same, but with a group of its own for some parameters."""
    mine = {id(p) for p in group.parameters}
    rest = [replace(g, parameters=[p for p in g.parameters if id(p) not in mine]) for g in by_shape(model)]
    return [*rest, group]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """The sizes, and who fills each slot."""

    sizes: Sizes
    embedding: Part = vanilla.TokenEmbedding  # ids ↔ x, one table
    tables: Callable[[Spec], vanilla.Tables] = vanilla.shared  # which roles share a table
    position: Part = vanilla.Sinusoid  # acts on x, on (q, k), on scores, on values
    norm: Part = vanilla.layer_norm  # x → x
    final: Part = vanilla.final_norm  # x → x, after the last layer
    residual: Part = vanilla.PreNorm  # (x, sublayer, call) → x
    attention: Part = vanilla.Attention  # (x, call) → x
    cross: Part = vanilla.CrossAttention  # (x, call) → x
    activation: Callable[[Tensor], Tensor] = torch.relu  # h → h; may work in place
    feed_forward: Part = vanilla.FeedForward  # (x, call) → x
    encoder_layer: Part = vanilla.EncoderLayer  # (x, call) → x
    decoder_layer: Part = vanilla.DecoderLayer  # (x, call) → x
    stack: Part = vanilla.Stack  # (x, call) → states, call
    decoder_stack: Part = vanilla.Stack
    bridge: Part = vanilla.LastState  # states → one memory per decoder layer
    head: Part = vanilla.SoftmaxHead  # log_probs(x, table), loss(x, table, targets, smoothing)
    init: Callable[[nn.Module, Spec], None] = as_built  # the last word on the weights
    groups: Callable[[nn.Module], list[Group]] = by_shape  # for the optimiser
    after_step: Callable[[nn.Module, int, int], None] = nothing  # after each optimiser step

    def place(self, stack: Literal["encoder", "decoder"]) -> Place:
        """The place of a whole stack of an encoder-decoder."""
        if stack == "encoder":
            return Place(stack, layers=self.sizes.encoder_layers, causal=False)
        return Place(stack, layers=self.sizes.decoder_layers, causal=True)


SLOTS = tuple(f.name for f in fields(Spec) if f.name != "sizes")
