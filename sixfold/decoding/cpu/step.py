"""The step of plain decoders on a CPU: rows of tokens without padding, matrix products, and compiled kernels.

`ModelStep` calls the layers as they are written. With one new token per hypothesis, most of its time goes into the
overhead of small operations, into masks, and into padding. Here every token is a row, whichever sentence it belongs to:
a matrix product takes all rows at once, and the operations between two products are one pass over them (`kernels.py`).
Each query reads the keys and values of its own past only, slot by slot. The sums are those of `ModelStep`, in another
order.

It serves decoders of attention, cross-attention, and feed-forward layers of any kind, with any norm, and with rotary
positions or positions added to embeddings. `ModelStep` serves other attentions and other arrangements of a layer, and
taps and gates, because this step never holds attention weights or the outputs of single heads.

The order in which a row is computed depends on its own sentence only. So a sentence has the same scores to the last bit
in every batch, as far as this file and `layers.py` compute them. That does not hold where a module of the model is
called (a head, embedding, encoder or feed-forward layer other than the plain or gated ones), because torch chooses the
order of a sum by the shape of the batch; nor in float32 on a CPU without fused multiply-add.

Letters: S sentences, w hypotheses of each, B = S·w, L new tokens, R rows, D width, H heads, K head width, n source
length, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.core import forms
from sixfold.core.call import Call
from sixfold.core.ids import PAD
from sixfold.core.masks import LazySight, Sight
from sixfold.core.parts import form_of
from sixfold.core.tap import Tap
from sixfold.decoding.cpu import kernels
from sixfold.decoding.cpu.int8 import is_quantised
from sixfold.decoding.cpu.kv_store import Arrays, BufferPool, KVStore, LayerKV, View
from sixfold.decoding.cpu.layers import (
    Buffer,
    FusedFeedForward,
    Residual,
    Scratch,
    is_linear,
    is_table,
    map_of,
    norm_of,
    numbers,
)
from sixfold.decoding.cpu.torch_private import hooks
from sixfold.decoding.step import ModelStep, Step, next_words, padded, parts_of
from sixfold.models.encoder_decoder import EncoderDecoder
from sixfold.models.model import Model
from sixfold.transformer import Position, TokenInput

LONG = 128  # source tokens from which on torch's attention, one sentence at a time, is faster
_POSITIONS = 64  # positions computed at once


def unknown_part(model: Model) -> str | None:
    """The first part of this model's decoder that FusedStep does not support; None if it supports all."""
    weight = next(model.parameters())
    if weight.device.type != "cpu" or not (weight.dtype == torch.float32 or is_quantised(model)):
        return f"{weight.dtype} on {weight.device.type}".removeprefix("torch.")
    if not isinstance(model, EncoderDecoder):
        return f"a model of kind {model.kind}"
    if any(map(hooks, model.modules())):
        return "a hook"
    return _unknown_in(model.decoder, forms.DecoderLayerForm)


def _unknown_in(stack: nn.Module, kind: type[forms.EncoderLayerForm]) -> str | None:
    """The type of the first part of a stack whose form is not supported."""
    form = form_of(stack)
    if not isinstance(form, forms.StackForm):
        return type(stack).__name__
    for layer in form.layers:
        parts = form_of(layer)
        if not isinstance(parts, forms.EncoderLayerForm) or type(parts) is not kind:
            return type(layer).__name__
        if unknown := _unknown_in_layer(parts):
            return unknown
    return None


def _unknown_in_layer(layer: forms.EncoderLayerForm) -> str | None:
    attention = form_of(layer.attention)
    if not isinstance(attention, forms.AttentionForm):
        return type(layer.attention).__name__
    linears, position = [attention.qkv, attention.output], attention.position
    if isinstance(layer, forms.DecoderLayerForm):
        cross = form_of(layer.cross)
        if not isinstance(cross, forms.CrossAttentionForm):
            return type(layer.cross).__name__
        linears += [cross.q, cross.kv, cross.output]
    for residual in layer.residuals:
        if not Residual.knows(residual):
            return type(residual).__name__
    if not all(map(is_linear, linears)):
        return "another kind of linear map"
    if isinstance(form_of(position), forms.RotaryForm) or not any(map(position.fills, ("rotate", "bias", "values"))):
        return None
    return type(position).__name__


def _layers(stack: nn.Module) -> tuple[list[Any], nn.Module]:
    """The forms of a stack's layers, and the norm at its end."""
    form = form_of(stack)
    assert isinstance(form, forms.StackForm)
    return [form_of(layer) for layer in form.layers], form.final


def make_step(
    model: Model, watch: str | None = None, tap: Tap | None = None, *, gated: bool = False
) -> FusedStep | ModelStep:
    """The fastest step for this model. If it must show attention, or be `gated`, it is a ModelStep."""
    if watch is None and tap is None and not gated:
        with suppress(Unknown):
            return FusedStep(model)
    return ModelStep(model, watch, tap)


class Unknown(ValueError):  # noqa: N818  (not named an error: the model is valid, and ModelStep serves it)
    """A model with a part that FusedStep does not support."""


class FusedStep:
    """The step of an encoder-decoder whose decoder has supported parts only. The next step overwrites its scores."""

    def __init__(self, model: Any):
        part = unknown_part(model)
        if part is not None:
            raise Unknown(f"FusedStep does not know {part}; ModelStep serves every model")
        self.model = model
        self.device = torch.device("cpu")
        self.int8 = is_quantised(model)  # keys and values, too
        self.pool = BufferPool()
        self.scratch = scratch = Scratch(torch.float64 if self.int8 else torch.float32)
        layers, final = _layers(model.decoder)
        self.layers, self.final = [_DecoderLayer(layer, scratch) for layer in layers], norm_of(final, scratch)
        self.input = _Input(model, "decoder", scratch)
        self.encoder = _Encoder(model, scratch) if _Encoder.knows(model) else None
        plain = isinstance(form_of(model.head), forms.SoftmaxForm) and is_table(model.roles["output"])
        self.output = map_of(model.roles["output"], scratch) if plain else None

    @torch.no_grad()
    def begin(self, sources: Sequence[Sequence[int]]) -> KVStore:
        """Read the sources. → the state before the first step"""
        encode, number = self.encoder or self._encode_by_model, len(sources)
        longest, lengths = max(map(len, sources)), list[int]()
        memory = [self._make(number, longest, layer.cross_shape) for layer in self.layers]
        for part in parts_of(sources):
            states, length = encode(part)
            sequence = np.repeat(np.arange(len(lengths), len(lengths) + len(part)), length)
            slot = np.concatenate([np.arange(each) for each in length])
            for layer, kv, x in zip(self.layers, memory, states, strict=True):
                kernels.write_kv(layer.keys_and_values(x), 0, *kv.arrays, sequence, slot)
            lengths += length
        past = [self._make(number, 0, layer.shape) for layer in self.layers]
        return KVStore.empty(memory, past, np.array(lengths), self.pool)

    def _make(self, sequences: int, slots: int, shape: tuple[int, int]) -> LayerKV:
        return LayerKV.make(self.pool, sequences, slots, shape, self.int8)

    def _encode_by_model(self, sources: Sequence[Sequence[int]]) -> tuple[list[Tensor], list[int]]:
        """Call the model's encoder. → for each decoder layer the states of all tokens (R, D); the lengths"""
        memory = self.model.encode(padded(sources, self.device))
        rows, length = memory.states[0].shape[:2]
        real = torch.ones(rows, length, dtype=torch.bool) if memory.real is None else memory.real
        return [states[real] for states in memory.states], real.sum(1).tolist()

    @torch.no_grad()
    def __call__(self, ids: Tensor, state: KVStore) -> Step:
        read = ids.numpy()
        real = read != PAD
        new = state.add(real)
        self.scratch.clear(len(new.position))
        x, call = self.input(read[real], new.position)
        for layer, past, memory in zip(self.layers, state.past, state.memory, strict=True):
            layer.attend(x, call, past.arrays, new.slot, new.past)
            layer.attend_to_memory(x, memory.arrays, new.memory)
            layer.feed_forward(x, call)
        self.final(x, x)
        scores, log_z = self._next_words(x, real)
        return Step(scores, log_z, state)

    def _next_words(self, x: Buffer, real: np.ndarray) -> tuple[Tensor, Tensor]:
        """Scores (B, V) and log_z (B,) after the last real token of each hypothesis; arbitrary if it has none."""
        if real.size != len(x.array) or real.shape[1] > 1:
            newest = (real.sum(1).cumsum() - 1).clip(min=0)
            self.scratch.clear(len(real))
            x = Buffer.of(x.tensor[torch.from_numpy(newest)])
        if self.output is None:
            return next_words(self.model, x.tensor.to(self.scratch.precision))
        scores, log_z = self.scratch.buffer("scores", self.output.outputs), np.empty(len(real), np.float32)
        self.output(x, scores)
        kernels.log_normaliser(scores.array, log_z)
        return scores.tensor, torch.from_numpy(log_z)


class _Input:
    """√D · E[id] + position; or the model's own input module."""

    def __init__(self, model: Any, stack: str, scratch: Scratch):
        role, attribute = {"encoder": ("source", "encoder_input"), "decoder": ("target", "decoder_input")}[stack]
        self.input: TokenInput = getattr(model, attribute)
        self.table, self.limit, self.scratch = model.roles[role], model.limits.get(stack), scratch
        self.words = model.sizes.vocabulary(stack)
        self.width, position = model.sizes.d_model, self.input.position
        self.waves = np.empty((0, self.width), np.float32)  # added to embeddings, for the positions reached so far
        self.angles: tuple[Tensor, ...] = ()  # of the same positions, if they are rotary
        added = isinstance(form_of(position), forms.SinusoidForm | forms.LearnedPositionsForm)
        self.plain = (added or not position.fills("embed")) and is_table(self.table)
        self.weight: Any = _form(self.table).weight if self.plain else None

    def __call__(self, ids: np.ndarray, position: np.ndarray) -> tuple[Buffer, Callable[[], Call]]:
        """Embed the new tokens. → (R, D), and a function that makes the call for the model's own modules"""
        positions = int(position.max()) + 1
        if ids.min() < 0 or ids.max() >= self.words:
            raise ValueError(f"ids from {ids.min()} to {ids.max()}, but the vocabulary has {self.words} words, from 0")
        if self.limit is not None and positions > self.limit:
            raise ValueError(f"{positions} positions, but this model has learned only {self.limit}; shorten the text")
        x = self.scratch.buffer("x", self.width)
        if self.plain:
            self._reach(positions)
            kernels.embed(ids, numbers(self.weight), self.waves, position, x.array)
        else:
            embedded, _ = self.input(torch.from_numpy(ids)[:, None], self.table, _call(position))
            x.tensor.copy_(embedded[:, 0])
        return x, self._call_for(x, position)

    def _call_for(self, x: Buffer, position: np.ndarray) -> Callable[[], Call]:
        """A function that makes the call when a module needs it. The position is prepared now, before x changes."""
        positioner, call = self.input.position, cache(partial(_call, position))
        if type(positioner).prepare is Position.prepare:
            return call
        if isinstance(form_of(positioner), forms.RotaryForm):
            prepared: Any = self._rotary_angles(positioner, torch.from_numpy(position))
        else:
            prepared = positioner.prepare(x.tensor[:, None].to(self.scratch.precision), call())
        return lambda: replace(call(), position=prepared, positioner=positioner)

    def _rotary_angles(self, rotary: Position, position: Tensor) -> tuple[Tensor, ...]:
        """The cosines and sines of `rotary` for rows at these positions."""
        while not self.angles or len(self.angles[0]) <= int(position.max()):
            first = len(self.angles[0]) if self.angles else 0
            call = _call(np.arange(first, first + _POSITIONS))
            more = rotary.prepare(torch.empty(0, dtype=self.scratch.precision), call)
            self.angles = tuple(map(torch.cat, zip(self.angles, more, strict=True))) if self.angles else more
        return tuple(each[position] for each in self.angles)

    def _reach(self, positions: int) -> None:
        """Extend `waves` to this many positions, in fixed blocks: see `row_by_row` for why rounding needs that."""
        while len(self.waves) < positions:
            first = len(self.waves)
            last = first + _POSITIONS if self.limit is None else min(first + _POSITIONS, self.limit)
            zeros = torch.zeros(last - first, 1, self.width)
            more = self.input.position.embed(zeros, _call(np.arange(first, last)))[:, 0]
            self.waves = np.concatenate([self.waves, numbers(more)])


def _call(position: np.ndarray) -> Call:
    """The call for the model's own modules, on rows of one token."""
    positions = torch.from_numpy(position)[:, None]
    return Call(positions=positions, key_positions=positions, lazy_sight=LazySight.of(Sight()), causal=True)


def _form(part: nn.Module) -> Any:
    """The form of a part that was checked to have one."""
    return form_of(part)


class _Layer:
    """Self-attention and feed-forward, which change rows x (R, D) in place."""

    def __init__(self, layer: Any, scratch: Scratch):
        self.scratch, attention = scratch, _form(layer.attention)
        self.qkv, self.output = map_of(attention.qkv, scratch), map_of(attention.output, scratch)
        self.shape = attention.heads, self.qkv.outputs // (3 * attention.heads)
        self.around_attention = Residual(layer.around_attention, scratch)
        self.around_feed_forward = Residual(layer.around_feed_forward, scratch)
        self.position = attention.position if attention.position.fills("rotate") else None
        known = FusedFeedForward.knows(layer.feed_forward)
        self.fused_feed_forward = FusedFeedForward(layer.feed_forward, scratch) if known else None
        self.own_feed_forward = layer.feed_forward

    def _queries_keys_values(self, x: Buffer, call: Callable[[], Call]) -> np.ndarray:
        """(R, 3, H, K)"""
        qkv = self.scratch.buffer("qkv", self.qkv.outputs)
        self.qkv(self.around_attention.before(x), qkv)
        if self.position is not None:
            qk = qkv.tensor.unflatten(1, (-1, 1, self.shape[1]))[:, : 2 * self.shape[0]]  # (R, 2H, 1, K)
            qk.copy_(self.position.rotate(qk.to(self.scratch.precision), call()))
        return qkv.array.reshape(len(qkv.array), 3, *self.shape)

    def feed_forward(self, x: Buffer, call: Callable[[], Call]) -> None:
        y = self.around_feed_forward.before(x)
        if self.fused_feed_forward is not None:
            self.fused_feed_forward.add(y, x)
        else:
            x.tensor.add_(self.own_feed_forward(y.tensor[:, None].to(self.scratch.precision), call())[:, 0])
        self.around_feed_forward.after(x)


class _DecoderLayer(_Layer):
    def __init__(self, layer: Any, scratch: Scratch):
        super().__init__(layer, scratch)
        cross = _form(layer.cross)
        self.q, self.kv = map_of(cross.q, scratch), map_of(cross.kv, scratch)
        self.cross_shape = cross.heads, self.q.outputs // cross.heads
        self.cross_output, self.around_cross = map_of(cross.output, scratch), Residual(layer.around_cross, scratch)

    def attend(self, x: Buffer, call: Callable[[], Call], kv: Arrays, slot: np.ndarray, view: View) -> None:
        qkv = self._queries_keys_values(x, call)
        kernels.write_kv(qkv, 1, *kv, view.sequence, slot)
        self.output.add(_attended(self.scratch, qkv, kv, 0, view), x)
        self.around_attention.after(x)

    def attend_to_memory(self, x: Buffer, kv: Arrays, view: View) -> None:
        q = self.scratch.buffer("q", self.q.outputs)
        self.q(self.around_cross.before(x), q)
        q_R1HK = q.array.reshape(len(q.array), 1, *self.cross_shape)
        self.cross_output.add(_attended(self.scratch, q_R1HK, kv, 0, view), x)
        self.around_cross.after(x)

    def keys_and_values(self, states: Tensor) -> np.ndarray:
        """States of sources (R, D) → (R, 2, H, K)"""
        self.scratch.clear(len(states))
        made = Buffer.of(torch.empty(len(states), self.kv.outputs))
        self.kv(Buffer.of(states), made)
        return made.array.reshape(len(states), 2, *self.cross_shape)


def _attended(scratch: Scratch, q: np.ndarray, kv: Arrays, keys: int, view: View) -> Buffer:
    """The outputs of all heads, (R, H·K)."""
    rows, _, heads, width = q.shape
    y = scratch.buffer("heads", heads * width)
    kernels.attend(q, *kv, keys, *view, y.array.reshape(rows, heads, width))
    return y


class _Encoder:
    """An encoder with supported parts only, over the tokens of several sources at once, without padding."""

    def __init__(self, model: Any, scratch: Scratch):
        self.scratch, self.input = scratch, _Input(model, "encoder", scratch)
        layers, final = _layers(model.encoder)
        self.layers, self.final = [_EncoderLayer(layer, scratch) for layer in layers], norm_of(final, scratch)
        self.decoder_layers = len(_layers(model.decoder)[0])

    @staticmethod
    def knows(model: Any) -> bool:
        if _unknown_in(model.encoder, forms.EncoderLayerForm) is not None:
            return False
        known = isinstance(form_of(model.bridge), forms.LastStateForm)
        return known and all(FusedFeedForward.knows(layer.feed_forward) for layer in _layers(model.encoder)[0])

    def __call__(self, sources: Sequence[Sequence[int]]) -> tuple[list[Tensor], list[int]]:
        """Encode the sources. → for each decoder layer the states of all tokens (R, D); the lengths of the sources"""
        sources = [[id_ for id_ in source if id_ != PAD] if PAD in source else source for source in sources]
        lengths = np.array([len(source) for source in sources])
        starts = lengths.cumsum() - lengths
        sentence = np.repeat(np.arange(len(sources)), lengths)
        position = np.arange(len(sentence)) - starts[sentence]
        order = starts[:, None] + np.arange(lengths.max())
        self.scratch.clear(len(sentence))
        x, call = self.input(np.concatenate([np.asarray(source) for source in sources]), position)
        view = View(np.zeros_like(sentence), order, sentence, lengths[sentence])
        for layer in self.layers:
            layer.attend(x, call, view, lengths)
            layer.feed_forward(x, call)
        self.final(x, x)
        return [x.tensor.clone()] * self.decoder_layers, lengths.tolist()


class _EncoderLayer(_Layer):
    def attend(self, x: Buffer, call: Callable[[], Call], view: View, lengths: np.ndarray) -> None:
        qkv = self._queries_keys_values(x, call)
        short = view._replace(visible=np.where(view.visible < LONG, view.visible, 0))
        y = _attended(self.scratch, qkv, (qkv[None], None), 1, short)
        for number in np.flatnonzero(lengths >= LONG):
            self._attend_alone(qkv, torch.from_numpy(view.order_row == number), y)
        self.output.add(y, x)
        self.around_attention.after(x)

    def _attend_alone(self, qkv: np.ndarray, rows: Tensor, y: Buffer) -> None:
        """The rows of one long source, by torch's attention. They are copied, so that their alignment is fixed."""
        q, k, v = torch.from_numpy(qkv)[rows].permute(1, 2, 0, 3)[:, None].unbind(0)  # (1, H, n, K)
        y.tensor[rows] = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).flatten(1)
