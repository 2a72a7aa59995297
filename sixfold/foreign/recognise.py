"""What CTranslate2 can express: each part of a model is recognised by its type, and whatever is not is refused by name.

    slot            expressed                                                refused
    stack           layers; one layer for all                                what halts, pools or counts its steps
    layer           the plain ones                                           cells, branches
    attention       plain, of any head width                                 synthesizers, convolutions
    cross           plain, with as many heads as self-attention              another number of heads
    feed_forward    plain, gated                                             experts, product keys, fixup's
    activation      relu, gelu (both), swish, sigmoid                        elu, selu, softplus, none at all
    residual        pre-norm, post-norm; ReZero with a norm                  no norm
    norm            layer norm, RMS norm                                     RMS norm of a fraction
    position        sinusoid, learned, none, rotary, T5 bias, Shaw           T5 bias per layer, Shaw per head
    embedding       a table; two factors, as their product                   clusters
    bridge, head    the last state; a plain softmax                          all others

The names of modifications are only for messages: a modification that fills a slot with known parts is expressed,
whoever wrote it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.models.model import Model
from sixfold.modifications._shared.factorized import Factors
from sixfold.modifications.block_sharing import SharedStack
from sixfold.modifications.gated import Gated
from sixfold.modifications.learned_positions import LearnedPositions
from sixfold.modifications.post_norm import PostNorm
from sixfold.modifications.rezero_layer_norm import NormedReZero
from sixfold.modifications.rms_norm import RMSNorm
from sixfold.modifications.rotary import Rotary
from sixfold.modifications.shaw import Shaw
from sixfold.modifications.t5_bias import T5Bias
from sixfold.spec.registry import find
from sixfold.transformer import (
    Attention,
    CrossAttention,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Input,
    LastState,
    Position,
    PreNorm,
    Sinusoid,
    SoftmaxHead,
    Stack,
    TokenEmbedding,
)

RMS_EPSILON = 1e-6  # as in rms_norm.py
POSITIONS = (Sinusoid, LearnedPositions, Position, Rotary, Shaw, T5Bias)

# How each activation is called there.
_ACTIVATIONS: dict[tuple[Any, tuple[Any, ...]], str] = {
    (torch.relu, ()): "RELU",
    (torch.relu_, ()): "RELU",
    (F.relu, ()): "RELU",
    (F.silu, ()): "SWISH",
    (torch.sigmoid, ()): "Sigmoid",
    (F.gelu, ()): "GELU",
    (F.gelu, (("approximate", "none"),)): "GELU",
    (F.gelu, (("approximate", "tanh"),)): "GELUTanh",
}


@dataclass(frozen=True)
class Kind:
    """What CTranslate2 wants to be told of a whole stack: all its layers are alike in this."""

    pre_norm: bool
    rms_norm: bool
    epsilon: float
    activation: str
    gated: bool
    heads: int
    d_head: int


@dataclass(frozen=True)
class Recognised:
    """A stack of parts that are all known."""

    input: Input
    layers: Sequence[Any]  # EncoderLayer or DecoderLayer; the same one several times where it is shared
    final: nn.Module | None  # the norm after the last layer
    kind: Kind
    position: Position  # the stack's own; those in the layers are of its type


class Inexpressible(ValueError):  # noqa: N818  (it says what is the matter, as ValueError does not)
    """A part that the other program does not have."""


def recognise(model: Model) -> dict[str, Recognised]:
    """The stacks of a model by name, if all its parts are known; else `Inexpressible` says which is not, and why."""
    reader = _Reader(model)
    if model.kind == "encoder_only":
        raise Inexpressible("a model of kind encoder_only writes no text, and is not exported to CTranslate2")
    for table in model.tables:
        reader.need("embedding", table, (TokenEmbedding, Factors), "reads words by one table")
    reader.need("head", model.head, (SoftmaxHead,), "ends with one softmax over one table")
    parts: Any = model
    if model.kind == "decoder_only":
        return {"only": reader.stack(parts.input, parts.stack, "stack")}
    reader.need("bridge", parts.bridge, (LastState,), "lets every decoder layer read the encoder's last state")
    return {
        "encoder": reader.stack(parts.encoder_input, parts.encoder, "stack"),
        "decoder": reader.stack(parts.decoder_input, parts.decoder, "decoder_stack"),
    }


def table_of(table: nn.Module) -> Tensor:
    """The table E (V, D) of an embedding; of factors, their product."""
    if isinstance(table, Factors) and table.projection is not None:
        return table.weight @ table.projection.weight.T
    assert isinstance(table, TokenEmbedding | Factors)
    return table.weight


def branch_scale(residual: nn.Module) -> Tensor | float:
    """What a residual connection multiplies its branch by: α of a ReZero, which the branch's last map can take in."""
    return residual.alpha if isinstance(residual, NormedReZero) else 1.0


class _Reader:
    """Looks at the parts, and refuses."""

    def __init__(self, model: Model):
        self.owners = {slot: each.name for each in model.assembly.modifications for slot in find(each.name).slots}

    def refuse(self, slot: str, what: str, why: str) -> NoReturn:
        owner = self.owners.get(slot)
        name = what if owner in (None, what) else f"{owner} ({what})"
        raise Inexpressible(f"{name} can't be exported to CTranslate2, {why}")

    def need(self, slot: str, part: Any, known: tuple[type, ...], how: str) -> Any:
        """The part, if it is of a type that is known; `how` says how CTranslate2 does it."""
        if type(part) not in known:
            self.refuse(slot, type(part).__name__, f"which {how}")
        return part

    def stack(self, entrance: Any, stack: Any, slot: str) -> Recognised:
        self.need(slot, stack, (Stack, SharedStack), "applies layer after layer, each once")
        layers = [stack.layer] * stack.times if isinstance(stack, SharedStack) else list(stack.layers)
        for layer in {id(layer): layer for layer in layers}.values():
            self.layer(layer)
        kinds = {self.kind(layer) for layer in layers}
        if len(kinds) > 1:
            self.refuse(slot, "a stack whose layers differ", "whose layers are all alike")
        (kind,) = kinds
        final = self.final(stack.final, kind)
        position = self.position(entrance.position, layers)
        return Recognised(
            self.need("position", entrance, (Input,), "adds positions to words"), layers, final, kind, position
        )

    def layer(self, layer: Any) -> None:
        slot = (
            "decoder_layer" if type(layer) is not EncoderLayer and "decoder_layer" in self.owners else "encoder_layer"
        )
        self.need(slot, layer, (EncoderLayer, DecoderLayer), "has self-attention, cross-attention and a feed-forward")
        self.need("attention", layer.attention, (Attention,), "attends by queries, keys and values")
        self.need("feed_forward", layer.feed_forward, (FeedForward, Gated), "has a plain or a gated feed-forward")
        if isinstance(layer, DecoderLayer):
            self.need("cross", layer.cross, (CrossAttention,), "attends by queries, keys and values")
            if layer.cross.heads != layer.attention.heads:
                what = f"{layer.cross.heads} heads in cross-attention and {layer.attention.heads} in self-attention"
                self.refuse("cross", what, "which has the same number of heads in both")
        for residual in residuals(layer):
            known = (PreNorm, PostNorm, NormedReZero)
            self.need("residual", residual, known, "has a norm before or after every sub-layer")

    def kind(self, layer: Any) -> Kind:
        around, feed_forward = residuals(layer), layer.feed_forward
        if len({type(residual) for residual in around}) > 1 or len({self.norm(r.norm) for r in around}) > 1:
            self.refuse("residual", "a layer whose residual connections differ", "where all of a layer are alike")
        rms_norm, epsilon = self.norm(around[0].norm)
        heads = layer.attention.heads
        return Kind(
            pre_norm=not isinstance(around[0], PostNorm),
            rms_norm=rms_norm,
            epsilon=epsilon,
            activation=self.activation(feed_forward),
            gated=isinstance(feed_forward, Gated),
            heads=heads,
            d_head=layer.attention.output.in_features // heads,
        )

    def norm(self, norm: nn.Module) -> tuple[bool, float]:
        """Whether it is an RMS norm, and its ε."""
        self.need("norm", norm, (nn.LayerNorm, RMSNorm), "has layer norm and RMS norm")
        if isinstance(norm, nn.LayerNorm):
            return False, norm.eps
        assert isinstance(norm, RMSNorm)
        if norm.channels != len(norm.weight):
            what = f"an RMS norm of {norm.channels} out of {len(norm.weight)} channels"
            self.refuse("norm", what, "whose RMS norm is over all of them")
        return True, RMS_EPSILON

    def final(self, final: nn.Module, kind: Kind) -> nn.Module | None:
        if isinstance(final, nn.Identity):
            return None
        if not kind.pre_norm:
            self.refuse("final", "a norm after a post-norm stack", "which has none there")
        if self.norm(final) != (kind.rms_norm, kind.epsilon):
            self.refuse("final", "a last norm unlike the others", "whose norms are all alike")
        return final

    def activation(self, feed_forward: Any) -> str:
        gated = isinstance(feed_forward, Gated)
        function = feed_forward.gate if gated else feed_forward.activation
        name = _ACTIVATIONS.get(_plain(function))
        if name is None:
            where = "feed_forward" if gated else "activation"
            self.refuse(where, _name(function), "whose activations are relu, gelu, swish and sigmoid")
        return name

    def position(self, position: Position, layers: Iterable[Any]) -> Position:
        inside = [layer.attention.position for layer in layers]
        self.need("position", position, POSITIONS, "has sinusoids, tables, rotary, T5 bias and Shaw's positions")
        if {type(each) for each in inside} != {type(position)}:
            self.refuse("position", "positions that differ within a stack", "where they are all alike")
        if isinstance(position, T5Bias) and position.per_layer and len({id(each) for each in inside}) > 1:
            why = "where all layers have that of the first (silently, in 4.7.0)"
            self.refuse("position", "a T5 bias for each layer", why)
        if isinstance(position, Shaw) and any(len(each.keys) > 1 for each in inside):
            self.refuse("position", "Shaw's positions for each head", "where the heads of a layer share them")
        return position


def residuals(layer: Any) -> list[Any]:
    """The residual connections of a layer, in order."""
    across = [layer.around_cross] if isinstance(layer, DecoderLayer) else []
    return [layer.around_attention, *across, layer.around_feed_forward]


def _plain(function: Callable[..., Any]) -> tuple[Any, tuple[Any, ...]]:
    """A function and its options, whether they are bound to it or not."""
    if isinstance(function, functools.partial) and not function.args:
        return function.func, tuple(sorted(function.keywords.items()))
    return function, ()


def _name(function: Any) -> str:
    function = getattr(function, "func", function)
    return str(getattr(function, "__name__", type(function).__name__))
