"""The step of decoders whose parts are known, in fewer and larger operations: the same sums, twice as fast or more.

A step of `ModelStep` goes through the layers as they are written, and in a decoder that adds one token to each row,
half of the time goes into calling them. Here self-attention and cross-attention are written out for one new token in
each row, residual sums are part of the products before them, and masks are made once for all layers. Norms,
feed-forward layers and heads of any kind are called as they are; other attentions, or other ways to put a layer
together, are left to `ModelStep`. What is remembered is the same Cache.

Letters: S sentences, w hypotheses of each, B = S·w rows, H heads, K head width, D width, M slots, n source length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.call import PAD, Call
from sixfold.decoding.cache import Cache
from sixfold.decoding.look import hide, look, steady
from sixfold.decoding.room import FINE, Grain
from sixfold.decoding.step import ModelStep, Step, next_words
from sixfold.entry import begin
from sixfold.int8 import Int8Linear
from sixfold.models import EncoderDecoder, Model
from sixfold.modifications.post_norm import PostNorm
from sixfold.transformer import (
    Attention,
    CrossAttention,
    DecoderLayer,
    FeedForward,
    PreNorm,
    Sinusoid,
    Stack,
    TokenEmbedding,
)

Map = Callable[[Tensor], Tensor]


def unknown_part(model: Model) -> str | None:
    """What of this model's decoder QuickStep does not know; None if it knows all."""
    if not isinstance(model, EncoderDecoder):
        return f"a model of kind {model.kind}"
    if type(model.decoder) is not Stack:
        return type(model.decoder).__name__
    known = {"attention": Attention, "cross": CrossAttention}
    for layer in model.decoder.layers:
        if type(layer) is not DecoderLayer:
            return type(layer).__name__
        for name, kind in known.items():
            if type(getattr(layer, name)) is not kind:
                return type(getattr(layer, name)).__name__
        for residual in (layer.around_attention, layer.around_cross, layer.around_feed_forward):
            if type(residual) not in (PreNorm, PostNorm):
                return type(residual).__name__
        if layer.cross.heads != layer.attention.heads:
            return "cross-attention with another number of heads"
        position = layer.attention.position
        if any(position.fills(place) for place in ("rotate", "bias", "values")):
            return type(position).__name__
    return None


def make_step(model: Model, watch: str | None = None) -> ModelStep:
    """The fastest step that this model has."""
    return QuickStep(model) if watch is None and unknown_part(model) is None else ModelStep(model, watch)


class QuickStep(ModelStep):
    """The step of an encoder-decoder that is known throughout."""

    def __init__(self, model: Model):
        super().__init__(model)
        part = unknown_part(model)
        if part is not None:
            raise ValueError(f"QuickStep does not know {part}; ModelStep serves every model")
        self.layers = [_Layer(layer) for layer in self.model.decoder.layers]
        self.final = _norm(self.model.decoder.final)
        qkv = self.model.decoder.layers[0].attention.qkv
        self.precision, self.grain = self.layers[0].precision, self.layers[0].grain  # of what attention sums up
        self.other_precision: torch.dtype = getattr(qkv, "result", self.precision)  # the same, in ModelStep
        self._waves = torch.empty(0)  # sinusoids of all positions so far
        self._hidden: tuple[Any, Tensor | None] = (None, None)  # of which memory, what

    def __call__(self, ids: Tensor, state: Cache) -> Step:
        if ids.shape[1] != 1 or torch.is_grad_enabled() or bool((ids == PAD).any()):
            state.cast(self.other_precision)
            return super().__call__(ids, state)
        state.cast(self.precision)
        x, call = self._begin(ids, state)
        seen, real = self._seen(call, state), self._real(state)
        for depth, layer in enumerate(self.layers):
            x = layer.attend(x, state, depth, seen)
            x = layer.attend_to_memory(x, state, depth, real)
            x = layer.feed_forward(x, call)
        state.finish(1)
        scores, log_z = next_words(self.model, self.final(x))
        return Step(scores, log_z, state)

    def _begin(self, ids: Tensor, state: Cache) -> tuple[Tensor, Call]:
        """The input of the first layer (B, D), and the call for parts that are called as they are."""
        real = torch.ones_like(ids, dtype=torch.bool)
        call = begin(ids, real, causal=True, cache=state, limit=self.model.limits.get("decoder"), memory=state.memory)
        table, position = self.model._table["target"], self.model.decoder_input.position
        if type(table).forward is not TokenEmbedding.forward or type(position) is not Sinusoid:
            x, call = self.model.decoder_input(ids, table, call)
            return x[:, 0], call
        x = F.embedding(ids[:, 0], table.weight) * math.sqrt(table.weight.shape[1])
        return x + self._sinusoids(call, x).index_select(0, call.positions[:, 0]), call

    def _sinusoids(self, call: Call, x: Tensor) -> Tensor:
        """(M or more, D)"""
        slots = call.key_positions.shape[1]
        if len(self._waves) < slots or self._waves.dtype != x.dtype:
            further = begin(torch.ones(1, 2 * slots, dtype=torch.long, device=x.device), None, causal=True)
            self._waves = self.model.decoder_input.position.embed(x.new_zeros(1, 2 * slots, x.shape[1]), further)[0]
        return self._waves

    def _seen(self, call: Call, state: Cache) -> Tensor:
        """What hides slots in self-attention, (S or 1, 1, w or 1, M or more)."""
        seen = call.sight.mask if state.sight is None else state.sight
        if seen is None:
            seen = torch.ones(1, 1, 1, call.key_positions.shape[1], dtype=torch.bool, device=self.device)
        return hide(seen, self.precision, self.grain)

    def _real(self, state: Cache) -> Tensor:
        """What hides padding in cross-attention, (S or 1, 1, 1, n or more): the same from one joining to the next."""
        memory, hiding = self._hidden
        if hiding is None or memory is not state.memory:
            memory = state.memory
            assert memory is not None
            real = memory.real
            if real is None:
                real = torch.ones(1, memory.states[0].shape[1], dtype=torch.bool, device=self.device)
            hiding = hide(real[:, None, None], self.precision, self.grain)
            self._hidden = memory, hiding
        return hiding


class _Layer:
    """A decoder layer, written out for states x (B, D) of one new token in each row."""

    def __init__(self, layer: Any):
        attention, cross, feed_forward = layer.attention, layer.cross, layer.feed_forward
        self.heads, self.place, self.cross_place = attention.heads, attention.place.name, cross.place.name
        self.precision, self.grain = _sums(attention)
        maps = attention.qkv, cross.q, cross.kv
        self.qkv, self.q, self.kv = (_map(linear, self.precision) for linear in maps)
        self.around_attention = _Around(layer.around_attention, attention.output)
        self.around_cross = _Around(layer.around_cross, cross.output)
        plain = type(feed_forward) is FeedForward
        self.around_feed_forward = _Around(layer.around_feed_forward, feed_forward.outer if plain else None)
        self.inner = _map(feed_forward.inner) if plain else None
        self.activation = _in_place(feed_forward.activation) if plain else _same
        self.whole_feed_forward = feed_forward

    def attend(self, x: Tensor, state: Cache, depth: int, seen: Tensor) -> Tensor:
        q, k, v = self.qkv(self.around_attention.before(x)).view(len(x), 3, self.heads, 1, -1).unbind(1)
        (k, v), _ = state.share((depth, self.place), (k, v), grain=self.grain)
        return self.around_attention.after(x, look(q, k, v, seen))

    def attend_to_memory(self, x: Tensor, state: Cache, depth: int, real: Tensor) -> Tensor:
        assert state.memory is not None
        q = self.q(self.around_cross.before(x)).view(len(x), self.heads, -1)
        kept = (depth, self.cross_place), state.memory.states[depth], self._keys_and_values
        k, v = state.keep(*kept, grain=self.grain)
        return self.around_cross.after(x, look(q, k, v, real))

    def _keys_and_values(self, memory_SnD: Tensor) -> tuple[Tensor, ...]:
        return self.kv(memory_SnD).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def feed_forward(self, x: Tensor, call: Call) -> Tensor:
        y = self.around_feed_forward.before(x)
        if self.inner is not None:
            return self.around_feed_forward.after(x, self.activation(self.inner(y)))
        return self.around_feed_forward.after(x, self.whole_feed_forward(y[:, None], call)[:, 0])


class _Around:
    """x + Output(Sublayer(Norm(x))), or Norm(x + Output(Sublayer(x))); the product does the sum, where it can."""

    def __init__(self, residual: Any, output: nn.Module | None):
        norm = _norm(residual.norm)
        pre = type(residual) is PreNorm
        self.before: Map = norm if pre else _same
        self.last: Map = _same if pre else norm
        self.output = output
        self.weight = output.weight.t() if type(output) is nn.Linear else None
        self.bias = output.bias if type(output) is nn.Linear else None

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        if self.weight is None:
            return self.last(x + (y if self.output is None else self.output(y)))
        total = torch.addmm(x, y, self.weight)
        return self.last(total if self.bias is None else total.add_(self.bias))


def _sums(attention: Any) -> tuple[torch.dtype, Grain]:
    """In what precision attention sums up, and by which grain. Behind maps in 8 bits, a sum must be the same in any
    company to the last bit: by a grain, if there is one on this machine, or else in doubles, as ModelStep does.
    """
    qkv = attention.qkv
    if type(qkv) is not Int8Linear:
        return qkv.weight.dtype, FINE
    grain = steady(qkv.out_features // (3 * attention.heads))
    return (qkv.result, FINE) if grain is None else (qkv.weight.dtype, grain)


def _map(linear: nn.Module, result: torch.dtype | None = None) -> Map:
    """A linear map, without the detour of calling a module where there is none."""
    if type(linear) is nn.Linear:
        return partial(F.linear, weight=linear.weight, bias=linear.bias)
    return linear.giving(result) if type(linear) is Int8Linear and result is not None else linear


def _in_place(activation: Map) -> Map:
    return torch.relu_ if activation is torch.relu else activation


def _norm(norm: nn.Module) -> Map:
    if type(norm) is not nn.LayerNorm:
        return norm
    shape, weight, bias, eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def _same(x: Tensor) -> Tensor:
    return x
