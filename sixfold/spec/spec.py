"""A model is a value: its sizes, and the part that fills each slot.

A modification (registry.py) is a function from one Spec to another; assemble.py checks the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sixfold import transformer as vanilla
from sixfold.core.place import Place, Sizes
from sixfold.core.pooling import MeanPool

Part = Callable[["Spec", Place], Any]  # → an nn.Module; the comments in Spec give its signature


def as_built(model: nn.Module, spec: Spec) -> None:
    """Leave the weights as they were drawn."""


def nothing(model: nn.Module, step: int, steps: int) -> None:
    """Do nothing after an optimiser step."""


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
    """The groups of `by_shape`, with some parameters moved to a group of their own."""
    mine = {id(p) for p in group.parameters}
    rest = [replace(g, parameters=[p for p in g.parameters if id(p) not in mine]) for g in by_shape(model)]
    return [*rest, group]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """The sizes, and the part that fills each slot."""

    sizes: Sizes
    input: Part = vanilla.TokenInput  # (ids, table, call) → x, call: the input of the first layer
    embedding: Part = vanilla.TokenEmbedding  # ids ↔ x, one table
    tables: Callable[[Spec], vanilla.Tables] = vanilla.shared  # which roles share a table
    position: Part = vanilla.Sinusoid  # acts on x, on (q, k), on scores, on values
    norm: Part = vanilla.layer_norm  # x → x
    final: Part = vanilla.final_norm  # x → x, after the last layer
    residual: Part = vanilla.PreNorm  # before(x), after(x, y) → x
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
    pool: Part = MeanPool  # (x, real) → one vector per row, for classification
    init: Callable[[nn.Module, Spec], None] = as_built  # changes the weights after they were drawn
    groups: Callable[[nn.Module], list[Group]] = by_shape  # for the optimiser
    after_step: Callable[[nn.Module, int, int], None] = nothing  # after each optimiser step

    def place(self, stack: Literal["encoder", "decoder"]) -> Place:
        """The place of a stack of an encoder-decoder."""
        if stack == "encoder":
            return Place(stack, layers=self.sizes.encoder_layers, causal=False)
        return Place(stack, layers=self.sizes.decoder_layers, causal=True)


SLOTS = tuple(f.name for f in fields(Spec) if f.name != "sizes")
