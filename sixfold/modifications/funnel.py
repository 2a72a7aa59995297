"""Funnel Transformer: an encoder whose text grows shorter on the way."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.core.call import Call
from sixfold.core.place import Place
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Attention, EncoderLayer, look, merge_heads, run, split_heads


class FunnelStack(nn.Module):
    """Blocks of layers; in the first layer of each but the first, `pool` neighbours become their mean."""

    keeps_length = False  # its states can't be added up

    def __init__(self, spec: Spec, place: Place, blocks: int, pool: int, study: bool):
        super().__init__()
        if place.causal:
            raise ValueError("funnel: the mean of neighbours shows the future, so a decoder can't be a funnel")
        if place.stack == "only" and not spec.sizes.classes:
            raise ValueError(
                "funnel leaves fewer states than words, so an encoder alone can't predict words; give classes to say"
            )
        if place.layers % blocks:
            raise ValueError(f"funnel: {place.layers} encoder layers don't divide into {blocks} blocks")
        self.pool, self.block = pool, place.layers // blocks
        narrow = partial(NarrowingLayer, pool=pool, study=study)
        kinds = [narrow if i and i % self.block == 0 else EncoderLayer for i in range(place.layers)]
        self.layers = nn.ModuleList(kind(spec, place.at(i)) for i, kind in enumerate(kinds))
        self.final = spec.final(spec, place.named("final"))
        if not study and not all(type(layer.attention) is Attention for layer in self.layers):
            raise ValueError("funnel pools the queries of plain attention; with another one say study=true")

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        states = [x]
        for depth, layer in enumerate(self.layers):
            here = replace(call, depth=depth)
            states.append(run(layer, states[-1], here))
            if isinstance(layer, NarrowingLayer):
                call = shortened(here, states[-2], self.pool)
        return [*states[:-1], self.final(states[-1])], call


class NarrowingLayer(EncoderLayer):
    """The first layer of a block: fewer states come out than went in."""

    def __init__(self, spec: Spec, place: Place, pool: int, study: bool):
        super().__init__(spec, place)
        self.pool, self.narrow = pool, pool_states if study else pool_queries

    def forward(self, x: Tensor, call: Call) -> Tensor:
        return self.narrow(self, shortened(call, x, self.pool), self.pool, x, call)


def pool_queries(layer: Any, after: Call, pool: int, x: Tensor, call: Call) -> Tensor:
    """The means of neighbours ask all tokens; then feed-forward for each of the fewer."""
    asking = partial(ask, layer.attention, read_by(layer.around_attention, x, call), call, pool)
    x = layer.around_attention(mean_of_neighbours(x, call, pool), asking, after)
    return layer.around_feed_forward(x, layer.feed_forward, after)


def read_by(residual: nn.Module, x: Tensor, call: Call) -> Tensor:
    """What a residual connection gives its sub-layer to read of x: normed, for instance."""
    read: list[Tensor] = []

    def sublayer(y: Tensor, call: Call) -> Tensor:
        read.append(y)
        return torch.zeros_like(y)

    residual(x, sublayer, call)
    return read[0]


def ask(attention: Attention, all_tokens: Tensor, call: Call, pool: int, means: Tensor, after: Call) -> Tensor:
    """Attention with queries from the means, and keys and values from all tokens."""
    inner = attention.output.in_features
    (q,) = split_heads(F.linear(means, attention.qkv.weight[:inner]), attention.heads, 1)
    k, v = split_heads(F.linear(all_tokens, attention.qkv.weight[inner:]), attention.heads, 2)
    among_tokens = replace(call, positions=after.positions * pool)  # a mean stands where the first of its tokens does
    if call.positioner is not None:
        among_tokens = replace(among_tokens, position=call.positioner.prepare(means, among_tokens))
    q, k = attention.position.rotate(q, among_tokens), attention.position.rotate(k, call)
    return attention.output(merge_heads(look(attention.place, among_tokens, q, k, v, call.sight, attention.position)))


def pool_states(layer: Any, after: Call, pool: int, x: Tensor, call: Call) -> Tensor:
    """The study's: self-attention among all, then the mean of neighbours, then feed-forward."""
    x = layer.around_attention(x, layer.attention, call)
    return layer.around_feed_forward(mean_of_neighbours(x, call, pool), layer.feed_forward, after)


def means_of(x: Tensor, call: Call, pool: int) -> int:
    """How long the shortened sequence is: ⌈L / pool⌉, and where padding is marked, one place of padding more.

    (torch.export takes a sequence of one for a program of its own; like this there are always two.)
    """
    return (x.shape[1] + pool - 1) // pool + (call.real is not None)


def shortened(call: Call, x: Tensor, pool: int) -> Call:
    """The call for the sequence of ⌈L / pool⌉ means, whose positions are counted anew."""
    positions = torch.arange(means_of(x, call, pool), device=x.device)[None]
    real = None if call.real is None else positions * pool < call.real.sum(1, keepdim=True)
    return call.over(x.new_zeros(x.shape[0], positions.shape[1], x.shape[2]), real, positions)


def mean_of_neighbours(x: Tensor, call: Call, pool: int) -> Tensor:
    """(B, L, D) → (B, ⌈L / pool⌉, D). Neighbours by position: pairs are the same wherever padding stands.

    ┌─┐ ┌─┐              ┌─┐ ┌─┐
    0 1 2 3 4 · ·    · · 0 1 2 3 4
    """
    length, mean_BL = means_of(x, call, pool), call.positions // pool
    tokens_B1: Tensor | int = x.shape[1] if call.real is None else call.real.sum(1, keepdim=True)
    if call.real is not None:
        mean_BL = torch.where(call.real, mean_BL, length)  # one too many, for padding
    sums = x.new_zeros(x.shape[0], length + 1, x.shape[2]).scatter_add(1, mean_BL[..., None].expand_as(x), x)[:, :-1]
    members = (tokens_B1 - torch.arange(length, device=x.device)[None] * pool).clamp(1, pool)  # (B or 1, ⌈L / pool⌉)
    return sums / members[..., None]


@modification("2006.03236", adds=lambda sizes, **_: 0)
def funnel(spec: Spec, *, blocks: int = 3, pool: int = 2, study: bool = False) -> Spec:
    """The encoder's text grows shorter: twice on its way, every two neighbours become their mean.

        block 1   ■ ■ ■ ■ ■ ■ ■ ■        attention, feed-forward, in every layer
        block 2   ■ ■ ■ ■ ■ ■ ■ ■        keys and values of its first attention
                   ■   ■   ■   ■         its queries, and everything from there on
        block 3      ■       ■           in the same way

    Padding enters no mean, and the decoder reads the short memory. Positions are counted anew after each
    pooling. With `study` the queries are not pooled, but the residual stream after that attention. The paper
    also keeps a [CLS] token apart and, for tasks with an output for each word, repeats the short states; this
    is left out, so an encoder alone must classify. Parameters: none.
    """
    if blocks < 1 or pool < 1:
        raise ValueError(f"funnel: blocks and pool must be at least 1, got {blocks} and {pool}")
    return replace(spec, stack=partial(FunnelStack, blocks=blocks, pool=pool, study=study))
