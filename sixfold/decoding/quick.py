"""The step of decoders whose parts are known, in fewer and larger operations: the same sums, about twice as fast.

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
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.call import Call
from sixfold.decoding.cache import Cache
from sixfold.decoding.step import ModelStep, Step, next_words
from sixfold.entry import begin
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

Sublayer = Callable[[Tensor], Tensor]


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
        self.heads = self.model.sizes.heads
        qkv = self.model.decoder.layers[0].attention.qkv
        self.precision: torch.dtype = getattr(qkv, "result", qkv.weight.dtype)  # of attention
        self._waves = torch.empty(0)  # sinusoids of all positions so far

    def __call__(self, ids: Tensor, state: Cache) -> Step:
        if ids.shape[1] != 1 or torch.is_grad_enabled():
            return super().__call__(ids, state)
        x, call = self._begin(ids, state)
        seen, real = self._sights(call, state)
        for depth, layer in enumerate(self.layers):
            x = layer.attend(x, state, depth, seen)
            x = layer.attend_to_memory(x, state, depth, real)
            x = layer.feed_forward(x, call)
        state.finish(1)
        scores, log_z = next_words(self.model, self.model.decoder.final(x))
        return Step(scores, log_z, state)

    def _begin(self, ids: Tensor, state: Cache) -> tuple[Tensor, Call]:
        """The input of the first layer (B, D), and the call for parts that are called as they are."""
        real = torch.ones_like(ids, dtype=torch.bool)  # nobody says PAD
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

    def _sights(self, call: Call, state: Cache) -> tuple[Tensor | None, Tensor | None]:
        """What is added to scores to hide what may not be seen: (S·H, w, M) in self-attention, (S·H, w, n) in cross."""
        dtype, (sentences, width) = self.precision, (state.sentences, state.width)
        seen = call.sight.mask if state.sight is None else state.sight
        real = None if state.memory is None or state.memory.real is None else state.memory.real[:, None, None]

        def written_out(mask: Tensor | None) -> Tensor | None:
            if mask is None:
                return None
            hiding = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
                ~mask, torch.finfo(dtype).min
            )
            return hiding.expand(sentences, self.heads, width, -1).reshape(sentences * self.heads, width, -1)

        return written_out(seen), written_out(real)


class _Layer:
    """A decoder layer, written out for states x (B, D) of one new token in each row."""

    def __init__(self, layer: DecoderLayer):
        self.layer = layer
        self.heads = layer.attention.heads
        self.place, self.cross = layer.attention.place, layer.cross.place

    def attend(self, x: Tensor, state: Cache, depth: int, seen: Tensor | None) -> Tensor:
        attention = self.layer.attention

        def heads(x: Tensor) -> Tensor:
            q, k, v = attention.qkv(x).view(len(x), 3, self.heads, 1, -1).unbind(1)
            (k, v), _ = state.share((depth, self.place.name), (k, v))
            return _look(q, k, v, seen)

        return _around(self.layer.around_attention, x, heads, attention.output)

    def attend_to_memory(self, x: Tensor, state: Cache, depth: int, real: Tensor | None) -> Tensor:
        cross, memory = self.layer.cross, state.memory
        assert memory is not None

        def make(memory_SnD: Tensor) -> tuple[Tensor, ...]:
            return cross.kv(memory_SnD).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

        def heads(x: Tensor) -> Tensor:
            k, v = state.keep((depth, self.cross.name), memory.states[depth], make)
            return _look(cross.q(x).view(len(x), self.heads, 1, -1), k, v, real)

        return _around(self.layer.around_cross, x, heads, cross.output)

    def feed_forward(self, x: Tensor, call: Call) -> Tensor:
        part = self.layer.feed_forward
        if type(part) is FeedForward:
            return _around(self.layer.around_feed_forward, x, lambda x: part.activation(part.inner(x)), part.outer)
        return _around(self.layer.around_feed_forward, x, lambda x: part(x[:, None], call)[:, 0], None)


def _around(residual: Any, x: Tensor, sublayer: Sublayer, output: nn.Module | None) -> Tensor:
    """x + Output(Sublayer(Norm(x))), or Norm(x + Output(Sublayer(x))); the product does the sum, where it can."""
    if type(residual) is PreNorm:
        return _add(x, sublayer(residual.norm(x)), output)
    return residual.norm(_add(x, sublayer(x), output))


def _add(x: Tensor, y: Tensor, output: nn.Module | None) -> Tensor:
    if type(output) is not nn.Linear:
        return x + (y if output is None else output(y))
    total = torch.addmm(x, y, output.weight.t())
    return total if output.bias is None else total.add_(output.bias)


def _look(q: Tensor, k: Tensor, v: Tensor, hiding: Tensor | None) -> Tensor:
    """Queries (S·w, H, 1, K), keys and values (S, H, M, K) → the heads' outputs (S·w, H·K)."""
    sentences, heads = k.shape[:2]
    rows, width = len(q), len(q) // sentences
    if width > 1:
        q = q.view(sentences, width, heads, -1).transpose(1, 2)
    q = q.reshape(sentences * heads, width, -1)
    k, v = k.flatten(0, 1), v.flatten(0, 1)
    scale = 1 / math.sqrt(q.shape[-1])
    if hiding is None:
        scores = torch.bmm(q * scale, k.transpose(1, 2))
    else:
        scores = torch.baddbmm(hiding, q, k.transpose(1, 2), alpha=scale)
    found = torch.bmm(scores.softmax(-1), v)
    if width > 1:
        found = found.view(sentences, heads, width, -1).transpose(1, 2)
    return found.reshape(rows, -1)
