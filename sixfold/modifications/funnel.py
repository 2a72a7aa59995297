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
    """Blocks of layers; the first layer of each block but the first replaces `pool` neighbours by their mean."""

    keeps_length = False  # its states have different lengths and can't be added

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
    """Queries are the means of neighbours, keys and values all tokens; then feed-forward on the shorter sequence."""

    def __init__(self, spec: Spec, place: Place, pool: int):
        super().__init__(spec, place, pool)
        self.asked = form_of(self.attention)
        if not isinstance(self.asked, AttentionForm):
            raise ValueError("funnel pools the queries of plain attention; with another attention use funnel_study")
        if not isinstance(self.around_attention, Residual):
            name = type(self.around_attention).__name__
            raise ValueError(f"funnel calls `before` of a residual: derive {name} from sixfold.transformer.Residual")

    def forward(self, x: Tensor, call: Call) -> Tensor:
        after, means = shortened(call, x, self.pool), mean_of_neighbours(x, call, self.pool)
        asking = partial(ask, self.asked, self.attention.place, self.around_attention.before(x), call, self.pool)
        return self.around_feed_forward(self.around_attention(means, asking, after), self.feed_forward, after)


def ask(attention: Any, place: Place, all_tokens: Tensor, call: Call, pool: int, means: Tensor, after: Call) -> Tensor:
    """Attention, by its form, with queries from the means, and keys and values from all tokens."""
    inner = attention.qkv.weight.shape[0] // 3
    (q,) = split_heads(F.linear(means, attention.qkv.weight[:inner]), attention.heads, 1)
    k, v = split_heads(F.linear(all_tokens, attention.qkv.weight[inner:]), attention.heads, 2)
    among_tokens = replace(call, positions=after.positions * pool)  # a mean has the position of its first token
    if call.positioner is not None:
        among_tokens = replace(among_tokens, position=call.positioner.prepare(means, among_tokens))
    q, k = attention.position.rotate(q, among_tokens), attention.position.rotate(k, call)
    return attention.output(merge_heads(weigh(place, among_tokens, q, k, v, call.sight, attention.position)))


def means_of(x: Tensor, call: Call, pool: int) -> int:
    """The length of the shortened sequence: ⌈L / pool⌉, plus one position of padding if padding is marked.

    (torch.export specialises on a length of one; the extra position makes it at least two.)
    """
    return (x.shape[1] + pool - 1) // pool + (call.real is not None)


def shortened(call: Call, x: Tensor, pool: int) -> Call:
    """The call for the sequence of ⌈L / pool⌉ means, with positions from 0."""
    positions = torch.arange(means_of(x, call, pool), device=x.device)[None]
    real = None if call.real is None else positions * pool < call.real.sum(1, keepdim=True)
    return call.over(x.new_zeros(x.shape[0], positions.shape[1], x.shape[2]), real, positions)


def mean_of_neighbours(x: Tensor, call: Call, pool: int) -> Tensor:
    """(B, L, D) → (B, ⌈L / pool⌉, D). Neighbours are determined by position, so padding on either side changes none.

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


@modification("2006.03236", adds=lambda sizes, **_: 0, most={"blocks": 1_000, "pool": 1_000_000})
def funnel(spec: Spec, *, blocks: int = 3, pool: int = 2) -> Spec:
    """The encoder shortens its sequence: between blocks, every two neighbours become their mean.

        block 1   ■ ■ ■ ■ ■ ■ ■ ■        attention, feed-forward, in every layer
        block 2   ■ ■ ■ ■ ■ ■ ■ ■        keys and values of its first attention
                   ■   ■   ■   ■         its queries, and everything from there on
        block 3      ■       ■           in the same way

    Padding enters no mean, and the decoder reads the short memory. Positions count from 0 again after each
    pooling. The paper also excludes a [CLS] token from pooling and, for tasks with an output per word, repeats
    the short states. Both are left out here, so an encoder alone must classify. Parameters: none.
    """
    return with_stack("funnel", spec, blocks, pool, PooledQueries)


def with_stack(name: str, spec: Spec, blocks: int, pool: int, narrowing: type[NarrowingLayer]) -> Spec:
    """The spec with a funnel as its encoder."""
    if blocks < 1 or pool < 1:
        raise ValueError(f"{name}: blocks and pool must be at least 1, got {blocks} and {pool}")
    return replace(spec, stack=partial(FunnelStack, blocks=blocks, pool=pool, narrowing=narrowing))
