"""Recognises the parts that CTranslate2 can express, by their forms. Any other part is refused by name.

    slot            expressed                                                refused
    stack           layers; one shared layer                                 halting, pooling, counting of steps
    layer           the plain ones                                           cells, branches
    attention       plain, of any head width                                 synthesizers, convolutions
    cross           plain, with as many heads as self-attention              another number of heads
    feed_forward    plain, gated                                             experts, product keys, fixup's
    activation      relu, gelu (exact and tanh), swish, sigmoid              elu, selu, softplus, none at all
    residual        pre-norm, post-norm; ReZero with a norm                  no norm
    norm            layer norm, RMS norm                                     RMS norm of a fraction
    position        sinusoid, learned, none, rotary, T5 bias, Shaw           T5 bias per layer, Shaw per head
    embedding       a table; two factors, as their product                   clusters
    bridge, head    the last state; a plain softmax                          all others

The names of modifications occur in messages only: any modification whose parts offer these forms (core/forms.py) can be
expressed, also a user's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.core import forms
from sixfold.core.parts import form_of
from sixfold.models.model import Model
from sixfold.spec.registry import find

_POSITIONS = (
    forms.SinusoidForm,
    forms.LearnedPositionsForm,
    forms.NoPositionForm,
    forms.RotaryForm,
    forms.ShawForm,
    forms.T5BiasForm,
)

# CTranslate2's name of each activation.
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
class StackProperties:
    """The properties that CTranslate2 has once per stack: all its layers must be alike in them."""

    pre_norm: bool
    rms_norm: bool
    epsilon: float
    activation: str
    gated: bool
    heads: int
    d_head: int


@dataclass(frozen=True)
class Layer:
    """The forms of a layer's parts, in which the forms of sub-modules replace the modules."""

    attention: forms.AttentionForm
    cross: forms.CrossAttentionForm | None
    feed_forward: forms.FeedForwardForm
    residuals: tuple[forms.ResidualForm, ...]  # in order


@dataclass(frozen=True)
class Recognised:
    """A stack whose parts are all recognised."""

    layers: Sequence[Layer]  # a shared layer is repeated
    final: forms.NormForm | None  # the norm after the last layer
    kind: StackProperties
    width: int  # D
    position: forms.PositionForm  # the form of the stack's position; those in the layers have the same type
    entrance: Any  # the stack's position, the module


class Inexpressible(ValueError):  # noqa: N818  (the name without "Error" says what is wrong)
    """A part that the other program lacks."""


def recognise(model: Model) -> dict[str, Recognised]:
    """The stacks of a model by name; raises `Inexpressible`, with the part and the reason, if one is not recognised."""
    reader = _Reader(model)
    if not model.writes_text:
        raise Inexpressible("a model of kind encoder_only writes no text, so it can't be exported to CTranslate2")
    for table in model.tables:
        reader.need("embedding", table, (forms.EmbeddingForm,), "reads words by one table")
    reader.need("head", model.head, (forms.SoftmaxForm,), "ends with one softmax over one table")
    parts: Any = model
    if not model.reads_source:
        return {"only": reader.stack(parts.input, parts.stack, "stack")}
    how = "lets every decoder layer read the encoder's last state"
    reader.need("bridge", parts.bridge, (forms.LastStateForm,), how)
    return {
        "encoder": reader.stack(parts.encoder_input, parts.encoder, "stack"),
        "decoder": reader.stack(parts.decoder_input, parts.decoder, "decoder_stack"),
    }


def table_of(table: nn.Module) -> Tensor:
    """The table E (V, D) of an embedding; of factors, their product."""
    form = form_of(table)
    assert isinstance(form, forms.EmbeddingForm)
    return form.weight if form.projection is None else form.weight @ form.projection.T


def branch_scale(residual: forms.ResidualForm) -> Tensor | float:
    """The factor on a residual connection's branch, such as ReZero's α; the branch's last map can absorb it."""
    return 1.0 if residual.gain is None else residual.gain


class _Reader:
    """Reads the forms of parts, and refuses those that are not recognised."""

    def __init__(self, model: Model):
        self.owners = {slot: each.name for each in model.assembly.modifications for slot in find(each.name).slots}

    def refuse(self, slot: str, what: str, why: str) -> NoReturn:
        owner = self.owners.get(slot)
        name = what if owner in (None, what) else f"{owner} ({what})"
        raise Inexpressible(f"{name} can't be exported to CTranslate2, {why}")

    def need(self, slot: str, part: nn.Module, known: tuple[type[forms.Form], ...], how: str) -> Any:
        """The form of a part; ValueError unless it is of a known type. `how` describes what CTranslate2 has instead."""
        form = form_of(part)
        if not isinstance(form, known):
            changed = " with a hook" if forms.altered(part) else ""
            self.refuse(slot, type(part).__name__ + changed, f"which {how}")
        return form

    def stack(self, entrance: Any, stack: nn.Module, slot: str) -> Recognised:
        form = self.need(slot, stack, (forms.StackForm,), "applies layer after layer, each once")
        found = {id(layer): self.layer(layer) for layer in form.layers}
        layers = [found[id(layer)] for layer in form.layers]
        kinds = {self.kind(layer) for layer in layers}
        if len(kinds) > 1:
            self.refuse(slot, "a stack whose layers differ", "whose layers are all alike")
        (kind,) = kinds
        final, width = self.final(form.final, kind), layers[0].attention.output.weight.shape[0]
        start = self.need("position", entrance, (forms.InputForm,), "adds positions to words").position
        return Recognised(layers, final, kind, width, self.position(start, layers), start)

    def layer(self, layer: nn.Module) -> Layer:
        form = form_of(layer)
        plain = type(form) is forms.EncoderLayerForm
        slot = "decoder_layer" if not plain and "decoder_layer" in self.owners else "encoder_layer"
        how = "has self-attention, cross-attention and a feed-forward"
        form = self.need(slot, layer, (forms.EncoderLayerForm, forms.DecoderLayerForm), how)
        how = "attends by queries, keys and values"
        attention = self.maps("attention", self.need("attention", form.attention, (forms.AttentionForm,), how))
        how = "has a plain or a gated feed-forward"
        inner = self.maps("feed_forward", self.need("feed_forward", form.feed_forward, (forms.FeedForwardForm,), how))
        cross = None
        if isinstance(form, forms.DecoderLayerForm):
            how = "attends by queries, keys and values"
            cross = self.maps("cross", self.need("cross", form.cross, (forms.CrossAttentionForm,), how))
            if cross.heads != attention.heads:
                what = f"{cross.heads} heads in cross-attention and {attention.heads} in self-attention"
                self.refuse("cross", what, "which has the same number of heads in both")
        return Layer(attention, cross, inner, tuple(self.residual(residual) for residual in form.residuals))

    def maps(self, slot: str, form: Any) -> Any:
        """The form with the forms of its linear maps in their place."""
        names = [name for name in ("qkv", "q", "kv", "inner", "outer", "output") if name in vars(form)]
        linear = {name: self.need(slot, vars(form)[name], (forms.LinearForm,), "multiplies matrices") for name in names}
        biased = slot == "feed_forward"
        for name, each in linear.items():
            if biased != (each.bias is not None):
                self.refuse(slot, f"{'no' if biased else 'a'} bias in {name}", "where only feed-forwards have biases")
        return replace(form, **linear)

    def residual(self, residual: nn.Module) -> forms.ResidualForm:
        known = (forms.PreNormForm, forms.PostNormForm)
        form = self.need("residual", residual, known, "has a norm before or after every sub-layer")
        return replace(form, norm=self.norm(form.norm))

    def kind(self, layer: Layer) -> StackProperties:
        around = layer.residuals
        pre_norm = {isinstance(each, forms.PreNormForm) for each in around}
        norms = {(each.norm.centred, each.norm.epsilon) for each in around}
        if len(pre_norm) > 1 or len(norms) > 1:
            self.refuse("residual", "a layer whose residual connections differ", "where those of a layer are alike")
        ((centred, epsilon),) = norms
        heads = layer.attention.heads
        return StackProperties(
            pre_norm=pre_norm == {True},
            rms_norm=not centred,
            epsilon=epsilon,
            activation=self.activation(layer.feed_forward),
            gated=layer.feed_forward.gated,
            heads=heads,
            d_head=layer.attention.output.weight.shape[1] // heads,
        )

    def norm(self, norm: nn.Module) -> forms.NormForm:
        form = self.need("norm", norm, (forms.NormForm,), "has layer norm and RMS norm")
        if form.channels != len(form.weight):
            what = f"an RMS norm of {form.channels} out of {len(form.weight)} channels"
            self.refuse("norm", what, "whose RMS norm is over all of them")
        if form.centred != (form.bias is not None):
            self.refuse("norm", type(norm).__name__, "whose layer norm has a bias, and whose RMS norm has none")
        return form

    def final(self, final: nn.Module, kind: StackProperties) -> forms.NormForm | None:
        if isinstance(form_of(final), forms.IdentityForm):
            return None
        if not kind.pre_norm:
            self.refuse("final", "a norm after a post-norm stack", "which has none there")
        norm = self.norm(final)
        if (norm.centred, norm.epsilon) != (not kind.rms_norm, kind.epsilon):
            self.refuse("final", "a last norm unlike the others", "whose norms are all alike")
        return norm

    def activation(self, feed_forward: forms.FeedForwardForm) -> str:
        name = _ACTIVATIONS.get(_plain(feed_forward.activation))
        if name is None:
            where = "feed_forward" if feed_forward.gated else "activation"
            self.refuse(where, _name(feed_forward.activation), "whose activations are relu, gelu, swish and sigmoid")
        return name

    def position(self, position: nn.Module, layers: Sequence[Layer]) -> forms.PositionForm:
        parts = [layer.attention.position for layer in layers]
        inside: dict[int, Any] = {id(part): form_of(part) for part in parts}
        how = "has sinusoids, tables, rotary, T5 bias and Shaw's positions"
        form = self.need("position", position, _POSITIONS, how)
        if {type(each) for each in inside.values()} != {type(form)}:
            self.refuse("position", "positions that differ within a stack", "where they are all alike")
        if isinstance(form, forms.T5BiasForm) and form.per_layer and len(inside) > 1:
            why = "where all layers use that of the first (silently, in 4.7.0)"
            self.refuse("position", "a T5 bias for each layer", why)
        if isinstance(form, forms.ShawForm) and any(len(each.keys) > 1 for each in inside.values()):
            self.refuse("position", "Shaw's positions for each head", "where the heads of a layer share them")
        return form


def _plain(function: Callable[..., Any]) -> tuple[Any, tuple[Any, ...]]:
    """A function and its options, whether they are bound to it or not."""
    if isinstance(function, functools.partial) and not function.args:
        return function.func, tuple(sorted(function.keywords.items()))
    return function, ()


def _name(function: Any) -> str:
    function = getattr(function, "func", function)
    return str(getattr(function, "__name__", type(function).__name__))
