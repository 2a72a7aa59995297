"""Funnel Transformer: an encoder that shortens its sequence from block to block."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.core.call import Call
from sixfold.core.forms import AttentionForm
from sixfold.core.parts import ModelPart, form_of
from sixfold.core.place import Place
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import EncoderLayer, Residual, merge_heads, run, split_heads, weigh


class FunnelStack(ModelPart):
    """Blocks of layers. From the second block on, a block's first layer replaces `pool` neighbours by their mean."""

    keeps_length = False  # so other parts can't add states of different layers, whose lengths differ

    def __init__(self, spec: Spec, place: Place, blocks: int, pool: int, narrowing: type[NarrowingLayer]):
        super().__init__()
        if place.causal:
            raise ValueError("funnel: a mean of neighbours contains later tokens, so a decoder can't be a funnel")
        if place.stack == "only" and not spec.sizes.classes:
            raise ValueError(
                "funnel outputs fewer states than words, so an encoder alone can't predict words; it can only classify"
            )
        if place.layers % blocks:
            raise ValueError(f"funnel: {place.layers} encoder layers don't divide into {blocks} blocks")
        self.pool, self.block = pool, place.layers // blocks
        narrow = partial(narrowing, pool=pool)
        kinds = [narrow if i and i % self.block == 0 else EncoderLayer for i in range(place.layers)]
        self.layers = nn.ModuleList(kind(spec, place.at(i)) for i, kind in enumerate(kinds))
        self.final = spec.final(spec, place.named("final"))

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        states = [x]
        for depth, layer in enumerate(self.layers):
            here = replace(call, depth=depth)
            states.append(run(layer, states[-1], here))
            if isinstance(layer, NarrowingLayer):
                call = shortened(here, states[-2], self.pool)
        return [*states[:-1], self.final(states[-1])], call

    def units(self) -> nn.ModuleList:
        return self.layers


class NarrowingLayer(EncoderLayer):
    """The first layer of a block, which outputs fewer states than it reads. Subclasses define how."""

    def __init__(self, spec: Spec, place: Place, pool: int):
        super().__init__(spec, place)
        self.pool = pool


class PooledQueries(NarrowingLayer):
    """The queries of its attention are means of neighbours, keys and values are all tokens. Its output is shorter."""

    def __init__(self, spec: Spec, place: Place, pool: int):
        super().__init__(spec, place, pool)
        self.form_of_attention = form_of(self.attention)
        if not isinstance(self.form_of_attention, AttentionForm):
            raise ValueError("funnel pools the queries of plain attention; with another attention use funnel_study")
        if not isinstance(self.around_attention, Residual):
            name = type(self.around_attention).__name__
            raise ValueError(
                f"funnel needs the method `before` of the residual, which {name} may lack: derive {name} from "
                f"sixfold.transformer.Residual"
            )

    def forward(self, x: Tensor, call: Call) -> Tensor:
        short_call, means = shortened(call, x, self.pool), mean_of_neighbours(x, call, self.pool)
        all_tokens = self.around_attention.before(x)
        attention = partial(
            attend_from_means, self.form_of_attention, self.attention.place, all_tokens, call, self.pool
        )
        means = self.around_attention(means, attention, short_call)
        return self.around_feed_forward(means, self.feed_forward, short_call)


def attend_from_means(
    attention: Any, place: Place, all_tokens: Tensor, call: Call, pool: int, means: Tensor, short_call: Call
) -> Tensor:
    """Attention with queries from the means, and keys and values from all tokens. `attention` is its form."""
    inner = attention.qkv.weight.shape[0] // 3
    (q,) = split_heads(F.linear(means, attention.qkv.weight[:inner]), attention.heads, 1)
    k, v = split_heads(F.linear(all_tokens, attention.qkv.weight[inner:]), attention.heads, 2)
    query_call = replace(call, positions=short_call.positions * pool)  # a mean has the position of its first token
    if call.positioner is not None:
        query_call = replace(query_call, position=call.positioner.prepare(means, query_call))
    q, k = attention.position.rotate(q, query_call), attention.position.rotate(k, call)
    return attention.output(merge_heads(weigh(place, query_call, q, k, v, call.sight, attention.position)))


def shortened_length(x: Tensor, call: Call, pool: int) -> int:
    """The length of the shortened sequence: ⌈L / pool⌉, plus one position of padding if padding is marked.

    (torch.export would specialise the program on a length of one; with the extra position, there are at least two.)
    """
    return (x.shape[1] + pool - 1) // pool + (call.real is not None)


def shortened(call: Call, x: Tensor, pool: int) -> Call:
    """The call for the sequence of ⌈L / pool⌉ means, with positions from 0."""
    positions = torch.arange(shortened_length(x, call, pool), device=x.device)[None]
    real = None if call.real is None else positions * pool < call.real.sum(1, keepdim=True)
    return call.for_sequence(x.new_zeros(x.shape[0], positions.shape[1], x.shape[2]), real, positions)


def mean_of_neighbours(x: Tensor, call: Call, pool: int) -> Tensor:
    """(B, L, D) → (B, ⌈L / pool⌉, D). Neighbours are found by their positions, so padding on either side is ignored.

    ┌─┐ ┌─┐              ┌─┐ ┌─┐
    0 1 2 3 4 · ·    · · 0 1 2 3 4
    """
    length, index_BL = shortened_length(x, call, pool), call.positions // pool  # the mean to which each token belongs
    tokens_B1: Tensor | int = x.shape[1] if call.real is None else call.real.sum(1, keepdim=True)
    if call.real is not None:
        index_BL = torch.where(call.real, index_BL, length)  # padding goes to an extra sum, which is dropped
    sums = x.new_zeros(x.shape[0], length + 1, x.shape[2]).scatter_add(1, index_BL[..., None].expand_as(x), x)[:, :-1]
    members = (tokens_B1 - torch.arange(length, device=x.device)[None] * pool).clamp(1, pool)  # (B or 1, ⌈L / pool⌉)
    return sums / members[..., None]


@modification("2006.03236", adds=lambda sizes, **_: 0, most={"blocks": 1_000, "pool": 1_000_000})
def funnel(spec: Spec, *, blocks: int = 3, pool: int = 2) -> Spec:
    """The encoder shortens its sequence: between blocks, every `pool` neighbours are replaced by their mean.

        block 1   ■ ■ ■ ■ ■ ■ ■ ■        attention, feed-forward, in every layer
        block 2   ■ ■ ■ ■ ■ ■ ■ ■        keys and values of its first attention
                   ■   ■   ■   ■         its queries, and everything from there on
        block 3      ■       ■           in the same way

    Padding is left out of the means. The decoder reads the shortened sequence. After each pooling, positions
    count from 0 again. The paper also excludes a [CLS] token from pooling and, for tasks with an output per
    word, repeats the short states. Both are left out here, so an encoder alone must classify. Parameters: none.
    """
    return with_stack("funnel", spec, blocks, pool, PooledQueries)


def with_stack(name: str, spec: Spec, blocks: int, pool: int, narrowing: type[NarrowingLayer]) -> Spec:
    """The spec with a funnel as its encoder."""
    if blocks < 1 or pool < 1:
        raise ValueError(f"{name}: blocks and pool must be at least 1, got {blocks} and {pool}")
    return replace(spec, stack=partial(FunnelStack, blocks=blocks, pool=pool, narrowing=narrowing))
