"""The sizes of a model (`Sizes`), and where a part of it is built (`Place`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from sixfold.core.bounds import LARGEST
from sixfold.core.quote import quoted


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a model. Give `vocab` for one joint vocabulary, or `source_vocab` and `target_vocab`.

    `replace(sizes, d_model=…)` keeps d_head; add d_head=0 to compute it from the new d_model.
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
    classes: int = 0  # the number of labels, if an encoder-only model classifies whole sequences
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in LARGEST:
            may_be_0 = name in ("d_head", "vocab", "source_vocab", "target_vocab", "classes")
            _check_size(name, getattr(self, name), at_least=0 if may_be_0 else 1)
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be a number, at least 0 and less than 1, got {quoted(self.dropout)}")
        if self.d_head == 0 and self.d_model % self.heads:
            raise ValueError(
                f"d_model {self.d_model} does not divide into {self.heads} heads; "
                f"choose a number of heads that divides it, or give d_head"
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
        """The size of the vocabulary that a stack reads or writes."""
        return self.vocab or (self.source_vocab if stack == "encoder" else self.target_vocab)


def _check_size(name: str, value: Any, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, got {quoted(value)}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {quoted(value)}")
    if value > LARGEST[name]:
        raise ValueError(f"{name} must be at most {LARGEST[name]:,}, got {quoted(value)}")


@dataclass(frozen=True)
class Place:
    """Where a part is built: the stack, the layer, and the part's name. If a model has one stack, it is `only`."""

    stack: Literal["encoder", "decoder", "only"]
    layers: int  # the number of layers of the stack
    causal: bool  # whether tokens of the stack may not see later ones
    layer: int | None = None  # None: the part serves the whole stack
    name: str = ""  # of the part within its layer, such as "attention" or "cross"

    def at(self, layer: int) -> Place:
        return replace(self, layer=layer)

    def named(self, name: str) -> Place:
        return replace(self, name=name)


class SpecLike(Protocol):
    """The attributes of a Spec (spec/spec.py) that transformer.py uses: the sizes, and for each slot a function or
    class that makes the part."""

    @property
    def sizes(self) -> Sizes: ...
    @property
    def embedding(self) -> Callable[..., Any]: ...
    @property
    def position(self) -> Callable[..., Any]: ...
    @property
    def norm(self) -> Callable[..., Any]: ...
    @property
    def final(self) -> Callable[..., Any]: ...
    @property
    def residual(self) -> Callable[..., Any]: ...
    @property
    def attention(self) -> Callable[..., Any]: ...
    @property
    def cross(self) -> Callable[..., Any]: ...
    @property
    def activation(self) -> Callable[..., Any]: ...
    @property
    def feed_forward(self) -> Callable[..., Any]: ...
    @property
    def encoder_layer(self) -> Callable[..., Any]: ...
    @property
    def decoder_layer(self) -> Callable[..., Any]: ...
    def place(self, stack: Literal["encoder", "decoder"]) -> Place: ...
