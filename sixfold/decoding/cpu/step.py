"""The step of plain decoders on a CPU: rows of tokens without padding, products, and compiled loops between them.

A step of `ModelStep` goes through the layers as they are written; while each row gets one new token, most of the time
goes into calling small operations, into masks, and into reading padding. Here every token that is read is a row,
whoever it belongs to: products take all rows at once, and what is between two products takes one pass over them
(`sixfold/kernels.py`). Each query looks at its own past, slot by slot, and at nothing that is hidden. The sums are
those of `ModelStep`, in another order.

It serves decoders of attention, cross-attention, and feed-forward layers of any kind, with any norm, and positions that
are added to embeddings, or rotary ones. Other attentions, and other ways to put a layer together, are left to
`ModelStep`.

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
from sixfold.core.inputs import begin
from sixfold.core.masks import Sight
from sixfold.core.parts import form_of
from sixfold.decoding.cpu import kernels
from sixfold.decoding.cpu.int8 import is_quantised
from sixfold.decoding.cpu.kv_store import Attic, Room, Shelf, View, make_room
from sixfold.decoding.cpu.layers import Around, Desk, Inner, Sheet, is_linear, is_table, map_of, norm_of, numbers
from sixfold.decoding.step import ModelStep, Step, next_words, padded, parts_of
from sixfold.models.encoder_decoder import EncoderDecoder
from sixfold.models.model import Model
from sixfold.transformer import Input, Position

LONG = 128  # source tokens, from which on torch's own attention is faster, sentence by sentence


def unknown_part(model: Model) -> str | None:
    """What of this model's decoder FusedStep does not know; None if it knows all."""
    weight = next(model.parameters())
    if weight.device.type != "cpu" or not (weight.dtype == torch.float32 or is_quantised(model)):
        return f"{weight.dtype} on {weight.device.type}".removeprefix("torch.")
    if not isinstance(model, EncoderDecoder):
        return f"a model of kind {model.kind}"
    if any(part._forward_hooks or part._forward_pre_hooks for part in model.modules()):
        return "a hook"
    return _unknown_in(model.decoder, forms.DecoderLayerForm)


def _unknown_in(stack: nn.Module, kind: type[forms.EncoderLayerForm]) -> str | None:
    """The first part of a stack whose form is not known, by its type."""
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
        if not Around.knows(residual):
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


def make_step(model: Model, watch: str | None = None) -> FusedStep | ModelStep:
    """The fastest step that this model has."""
    if watch is None:
        with suppress(Unknown):
            return FusedStep(model)
    return ModelStep(model, watch)


class Unknown(ValueError):  # noqa: N818  (it says what is the matter, as ValueError does not)
    """A model that FusedStep does not know throughout."""


class FusedStep:
    """The step of an encoder-decoder whose decoder is known throughout. Its scores hold until the next step."""

    def __init__(self, model: Any):
        part = unknown_part(model)
        if part is not None:
            raise Unknown(f"FusedStep does not know {part}; ModelStep serves every model")
        self.model = model
        self.device = torch.device("cpu")
        self.whole = is_quantised(model)  # so are keys and values
        self.attic, self.desk = Attic(), (desk := Desk(torch.float64 if self.whole else torch.float32))
        layers, final = _layers(model.decoder)
        self.layers, self.final = [_DecoderLayer(layer, desk) for layer in layers], norm_of(final, desk)
        self.entrance = _Entrance(model, "decoder", desk)
        self.reader = _Reader(model, desk) if _Reader.knows(model) else None
        plain = isinstance(form_of(model.head), forms.SoftmaxForm) and is_table(model.roles["output"])
        self.output = map_of(model.roles["output"], desk) if plain else None

    @torch.no_grad()
    def begin(self, sources: Sequence[Sequence[int]]) -> Shelf:
        """The state before the first step, when the sources are read."""
        read, whole, number = self.reader or self._read_as_it_is, self.whole, len(sources)
        longest, lengths = max(map(len, sources)), list[int]()
        memory = [make_room(self.attic, number, longest, layer.cross_shape, whole) for layer in self.layers]
        for part in parts_of(sources):
            states, length = read(part)
            home = np.repeat(np.arange(len(lengths), len(lengths) + len(part)), length)
            slot = np.concatenate([np.arange(each) for each in length])
            for layer, room, x in zip(self.layers, memory, states, strict=True):
                kernels.lay(layer.keys_and_values(x), 0, *room, home, slot)
            lengths += length
        past = [make_room(self.attic, number, 0, layer.shape, whole) for layer in self.layers]
        return Shelf.empty(memory, past, np.array(lengths), self.attic)

    def _read_as_it_is(self, sources: Sequence[Sequence[int]]) -> tuple[list[Tensor], list[int]]:
        """By the model's own encoder. → for each layer of the decoder, states of all tokens (R, D); the lengths"""
        memory = self.model.encode(padded(sources, self.device))
        rows, length = memory.states[0].shape[:2]
        real = torch.ones(rows, length, dtype=torch.bool) if memory.real is None else memory.real
        return [states[real] for states in memory.states], real.sum(1).tolist()

    @torch.no_grad()
    def __call__(self, ids: Tensor, state: Shelf) -> Step:
        read = ids.numpy()
        real = read != PAD
        news = state.add(real)
        self.desk.clear(len(news.position))
        x, call = self.entrance(read[real], news.position)
        for layer, past, memory in zip(self.layers, state.past, state.memory, strict=True):
            layer.attend(x, call, past, news.slot, news.past)
            layer.attend_to_memory(x, memory, news.memory)
            layer.feed_forward(x, call)
        self.final(x, x)
        scores, log_z = self._next_words(x, real)
        return Step(scores, log_z, state)

    def _next_words(self, x: Sheet, real: np.ndarray) -> tuple[Tensor, Tensor]:
        """After the newest token of each row (B, L), which stands last. Of a row of padding, it does not matter."""
        if real.size != len(x.array) or real.shape[1] > 1:
            newest = (real.sum(1).cumsum() - 1).clip(min=0)
            self.desk.clear(len(real))
            x = Sheet.of(x.tensor[torch.from_numpy(newest)])
        if self.output is None:
            return next_words(self.model, x.tensor.to(self.desk.precision))
        scores, log_z = self.desk.sheet("scores", self.output.outputs), np.empty(len(real), np.float32)
        self.output(x, scores)
        kernels.normalise(scores.array, log_z)
        return scores.tensor, torch.from_numpy(log_z)


class _Entrance:
    """√D · E[id] + position, or whatever the model does."""

    def __init__(self, model: Any, stack: str, desk: Desk):
        role, entrance = {"encoder": ("source", "encoder_input"), "decoder": ("target", "decoder_input")}[stack]
        self.input: Input = getattr(model, entrance)
        self.table, self.limit, self.desk = model.roles[role], model.limits.get(stack), desk
        self.words = model.sizes.vocabulary(stack)
        self.width, position = model.sizes.d_model, self.input.position
        self.waves = np.empty((0, self.width), np.float32)  # of all positions so far
        added = isinstance(form_of(position), forms.SinusoidForm | forms.LearnedPositionsForm)
        self.plain = (added or not position.fills("embed")) and is_table(self.table)
        self.weight: Any = _form(self.table).weight if self.plain else None

    def __call__(self, ids: np.ndarray, position: np.ndarray) -> tuple[Sheet, Callable[[], Call]]:
        """→ (R, D), and what parts get that are called as they are"""
        last = int(position.max()) + 1
        if ids.min() < 0 or ids.max() >= self.words:
            raise ValueError(f"ids from {ids.min()} to {ids.max()}, but the vocabulary has {self.words} words, from 0")
        if self.limit is not None and last > self.limit:
            raise ValueError(f"{last} positions, but this model has learned only {self.limit}; shorten the text")
        x = self.desk.sheet("x", self.width)
        if self.plain:
            kernels.embed(ids, numbers(self.weight), self._waves(last), position, x.array)
        else:
            embedded, _ = self.input(torch.from_numpy(ids)[:, None], self.table, _call(position))
            x.tensor.copy_(embedded[:, 0])
        return x, self._call_for(x, position)

    def _call_for(self, x: Sheet, position: np.ndarray) -> Callable[[], Call]:
        """It is drawn up only when somebody asks, unless positions are prepared, which is done before x changes."""
        positioner, call = self.input.position, cache(partial(_call, position))
        if type(positioner).prepare is Position.prepare:
            return call
        prepared = positioner.prepare(x.tensor[:, None].to(self.desk.precision), call())
        return lambda: replace(call(), position=prepared, positioner=positioner)

    def _waves(self, slots: int) -> np.ndarray:
        """What is added at each position, (slots or more, D)."""
        if len(self.waves) < slots:
            many = max(2 * slots, 64) if self.limit is None else self.limit
            call = begin(torch.ones(1, many, dtype=torch.long), None, causal=True)
            self.waves = numbers(self.input.position.embed(torch.zeros(1, many, self.width), call)[0])
        return self.waves


def _call(position: np.ndarray) -> Call:
    """For parts that are called as they are, with rows of one token."""
    positions = torch.from_numpy(position)[:, None]
    return Call(positions=positions, key_positions=positions, sight=Sight(), causal=True)


def _form(part: nn.Module) -> Any:
    """Of a part that is known to have one."""
    return form_of(part)


class _Layer:
    """Self-attention and feed-forward, for rows x (R, D), which they change."""

    def __init__(self, layer: Any, desk: Desk):
        self.desk, attention = desk, _form(layer.attention)
        self.qkv, self.output = map_of(attention.qkv, desk), map_of(attention.output, desk)
        self.shape = attention.heads, self.qkv.outputs // (3 * attention.heads)
        self.around_attention = Around(layer.around_attention, desk)
        self.around_feed_forward = Around(layer.around_feed_forward, desk)
        self.position = attention.position if attention.position.fills("rotate") else None
        self.inner = Inner(layer.feed_forward, desk) if Inner.knows(layer.feed_forward) else None
        self.whole_feed_forward = layer.feed_forward

    def _queries_keys_values(self, x: Sheet, call: Callable[[], Call]) -> np.ndarray:
        """(R, 3, H, K)"""
        qkv = self.desk.sheet("qkv", self.qkv.outputs)
        self.qkv(self.around_attention.before(x), qkv)
        if self.position is not None:
            qk = qkv.tensor.unflatten(1, (-1, 1, self.shape[1]))[:, : 2 * self.shape[0]]  # (R, 2H, 1, K)
            qk.copy_(self.position.rotate(qk.to(self.desk.precision), call()))
        return qkv.array.reshape(len(qkv.array), 3, *self.shape)

    def feed_forward(self, x: Sheet, call: Callable[[], Call]) -> None:
        y = self.around_feed_forward.before(x)
        if self.inner is not None:
            self.inner.add(y, x)
        else:
            x.tensor.add_(self.whole_feed_forward(y.tensor[:, None].to(self.desk.precision), call())[:, 0])
        self.around_feed_forward.after(x)


class _DecoderLayer(_Layer):
    def __init__(self, layer: Any, desk: Desk):
        super().__init__(layer, desk)
        cross = _form(layer.cross)
        self.q, self.kv = map_of(cross.q, desk), map_of(cross.kv, desk)
        self.cross_shape = cross.heads, self.q.outputs // cross.heads
        self.cross_output, self.around_cross = map_of(cross.output, desk), Around(layer.around_cross, desk)

    def attend(self, x: Sheet, call: Callable[[], Call], room: Room, slot: np.ndarray, view: View) -> None:
        qkv = self._queries_keys_values(x, call)
        kernels.lay(qkv, 1, *room, view.home, slot)
        self.output.add(_looked(self.desk, qkv, room, 0, view), x)
        self.around_attention.after(x)

    def attend_to_memory(self, x: Sheet, room: Room, view: View) -> None:
        q = self.desk.sheet("q", self.q.outputs)
        self.q(self.around_cross.before(x), q)
        q_R1HK = q.array.reshape(len(q.array), 1, *self.cross_shape)
        self.cross_output.add(_looked(self.desk, q_R1HK, room, 0, view), x)
        self.around_cross.after(x)

    def keys_and_values(self, states: Tensor) -> np.ndarray:
        """States of sources (R, D) → (R, 2, H, K)"""
        self.desk.clear(len(states))
        made = Sheet.of(torch.empty(len(states), self.kv.outputs))
        self.kv(Sheet.of(states), made)
        return made.array.reshape(len(states), 2, *self.cross_shape)


def _looked(desk: Desk, q: np.ndarray, room: Room, part: int, view: View) -> Sheet:
    """What the heads of all rows found, (R, H·K)."""
    rows, _, heads, width = q.shape
    found = desk.sheet("found", heads * width)
    kernels.look(q, *room, part, *view, found.array.reshape(rows, heads, width))
    return found


class _Reader:
    """An encoder that is known throughout, over tokens of several sources at once, without padding."""

    def __init__(self, model: Any, desk: Desk):
        self.desk, self.entrance = desk, _Entrance(model, "encoder", desk)
        layers, final = _layers(model.encoder)
        self.layers, self.final = [_EncoderLayer(layer, desk) for layer in layers], norm_of(final, desk)
        self.readers = len(_layers(model.decoder)[0])

    @staticmethod
    def knows(model: Any) -> bool:
        if _unknown_in(model.encoder, forms.EncoderLayerForm) is not None:
            return False
        known = isinstance(form_of(model.bridge), forms.LastStateForm)
        return known and all(Inner.knows(layer.feed_forward) for layer in _layers(model.encoder)[0])

    def __call__(self, sources: Sequence[Sequence[int]]) -> tuple[list[Tensor], list[int]]:
        """→ for each layer of the decoder, states of all tokens (R, D); the lengths of the sources"""
        sources = [[id_ for id_ in source if id_ != PAD] if PAD in source else source for source in sources]
        lengths = np.array([len(source) for source in sources])
        starts = lengths.cumsum() - lengths
        line = np.repeat(np.arange(len(sources)), lengths)
        position = np.arange(len(line)) - starts[line]
        order = starts[:, None] + np.arange(lengths.max())
        self.desk.clear(len(line))
        x, call = self.entrance(np.concatenate([np.asarray(source) for source in sources]), position)
        view = View(np.zeros_like(line), order, line, lengths[line])
        for layer in self.layers:
            layer.attend(x, call, view, lengths)
            layer.feed_forward(x, call)
        self.final(x, x)
        return [x.tensor.clone()] * self.readers, lengths.tolist()


class _EncoderLayer(_Layer):
    def attend(self, x: Sheet, call: Callable[[], Call], view: View, lengths: np.ndarray) -> None:
        qkv = self._queries_keys_values(x, call)
        short = view._replace(seen=np.where(view.seen < LONG, view.seen, 0))
        found = _looked(self.desk, qkv, (qkv[None], None), 1, short)
        for number in np.flatnonzero(lengths >= LONG):
            self._look_alone(qkv, view.line == number, found)
        self.output.add(found, x)
        self.around_attention.after(x)

    def _look_alone(self, qkv: np.ndarray, rows: np.ndarray, found: Sheet) -> None:
        """The rows of one long source, whose neighbours make no difference."""
        q, k, v = torch.from_numpy(qkv[rows]).permute(1, 2, 0, 3)[:, None].unbind(0)  # (1, H, n, K)
        found.tensor[torch.from_numpy(rows)] = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).flatten(1)
