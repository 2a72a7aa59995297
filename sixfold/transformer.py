"""The Transformer of "Attention Is All You Need" (arXiv 1706.03762), whole, in the order a lecture tells it.

Letters, in names and comments alike:

    B rows of a batch    L queries    M keys      D model width         V words
    H heads              K head width             F feed-forward width  S, n source rows, length

    x        is always (B, L, D)
    q, k, v  are always (B, H, L, K); keys and values have M where queries have L
    any other tensor has its shape in its name (scores_BHLM) or in a comment

Parts are built with (spec, place): the maker of each slot, and the stack and layer. They are called
with (x, call); the call holds everything besides x, such as positions, padding and the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sixfold.core import forms
from sixfold.core.attention_kernels import attend, folding_hypotheses
from sixfold.core.call import Call
from sixfold.core.dropout import Dropout
from sixfold.core.init import Normal, linear, parameter, truncated
from sixfold.core.loss import Scored, chunked_cross_entropy
from sixfold.core.masks import Sight
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, SpecLike

# 1 · Self-attention: every word looks at every word ------------------------------------------------


@folding_hypotheses
def attend_explicitly(
    q: Tensor, k: Tensor, v: Tensor, sight: Sight, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(Q Kᵀ / √K + bias) V, and the softmax itself, (B, H, L, M). A query that may see nothing gets zeros.

    `attend` computes the first by a fused kernel, which never holds the weights.
    """
    scores_BHLM = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if bias is not None:
        scores_BHLM = scores_BHLM + bias
    weights_BHLM = sight.softmax(scores_BHLM)
    return weights_BHLM @ v, weights_BHLM


# 2 · Masks: hiding the padding, and the future ------------------------------------------------------
#
# A Sight (core/masks.py) has the keys that queries may see: all, the past, or where a mask is True.
#
#     j → 0 1 2 3        a causal mask: query i sees key j when j <= i
#     i 0 ■ · · ·        a decoder predicts each word from the words before it, at all positions in one pass
#       1 ■ ■ · ·
#       2 ■ ■ ■ ·        padding is hidden the same way: a column that no query sees
#       3 ■ ■ ■ ■


# 3 · Positions: attention alone cannot tell "man eats dinosaur" from "dinosaur eats man" -------------


class Position(ModelPart, form=forms.NoPositionForm):
    """Tells a model the order of tokens. It can act in four places; this base class acts in none.

    Each stack has a position (its place has no layer), which embeds, and once per pass prepares data
    for the layers. Each self-attention has another, which rotates, biases, and adds to values.
    """

    def __init__(self, spec: SpecLike, place: Place):
        super().__init__()

    @classmethod
    def fills(cls, place: str) -> bool:
        """Whether it acts at "embed", "rotate", "bias" or "values"."""
        return getattr(cls, place) is not getattr(Position, place)

    def embed(self, x: Tensor, call: Call) -> Tensor:
        """Act on the embeddings, before the first layer."""
        return x

    def prepare(self, x: Tensor, call: Call) -> Any:
        """The value of `call.position` for the layers."""

    def rotate(self, heads: Tensor, call: Call) -> Tensor:
        """Act on the queries and on the keys (B, H, L, K) of the tokens that are new in this call."""
        return heads

    def bias(self, q: Tensor, call: Call) -> Tensor | None:
        """Act on the scaled scores: (B or 1, H, L, M), to be added."""
        return None

    def values(self, weights_BHLM: Tensor, call: Call) -> Tensor | float:
        """Act on the heads' outputs: (B, H, L, K), to be added. It needs the attention weights."""
        return 0.0


NO_POSITION = Position(None, None)  # type: ignore[arg-type]  # where none is wanted, as in cross-attention


class Sinusoid(Position, form=forms.SinusoidForm):
    """p[t, 2i] = sin(t / 10000^(2i/D)),  p[t, 2i+1] = cos(t / 10000^(2i/D)), added to the embedding."""

    def embed(self, x: Tensor, call: Call) -> Tensor:
        width = x.shape[-1]
        exact = torch.promote_types(x.dtype, torch.float32)  # half precision cannot count to 10,000
        even = torch.arange(0, width, 2, dtype=exact, device=x.device)
        angles = call.positions[..., None].to(exact) * torch.exp(even * (-math.log(10000) / width))
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :width]
        return x + waves.to(x.dtype)


# 4 · Many heads: each looks for something else ------------------------------------------------------


def split_heads(x: Tensor, heads: int, parts: int) -> tuple[Tensor, ...]:
    """(B, L, parts·H·K) → that many (B, H, L, K)."""
    return tuple(part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in x.chunk(parts, dim=-1))


def merge_heads(heads: Tensor) -> Tensor:
    """(B, H, L, K) → (B, L, H·K)."""
    return heads.transpose(1, 2).flatten(-2)


def look(place: Place, call: Call, q: Tensor, k: Tensor, v: Tensor, position: Position) -> Tensor:
    """Heads of the new tokens (B, H, L, K) look at all tokens so far. → (B, H, L, K)"""
    k, v, sight = call.remember(place, k, v, apart=position.fills("bias") or position.fills("values"))
    return weigh(place, call, q, k, v, sight, position)


def look_at_memory(place: Place, call: Call, q: Tensor, keys_and_values: Callable[..., tuple[Tensor, ...]]) -> Tensor:
    """Heads (B, H, L, K) look at the keys and values that are made of the memory (S, n, D). → (B, H, L, K)"""
    k, v = call.keep_for_sentences(place, keys_and_values)
    return weigh(place, call, q, k, v, Sight.among(call.memory.real, causal=False), NO_POSITION)


def weigh(place: Place, call: Call, q: Tensor, k: Tensor, v: Tensor, sight: Sight, position: Position) -> Tensor:
    """Attention with its positions, fused unless the weights are needed. → (B, H, L, K)"""
    bias = position.bias(q, call)
    if not position.fills("values") and not call.watched(place):
        return call.gate(place, attend(q, k, v, sight, bias))
    heads, weights = attend_explicitly(q, k, v, sight, bias)
    heads = heads + position.values(weights, call)
    call.show(place, weights=weights, q=q, k=k, v=v, bias=bias, heads=heads)
    return call.gate(place, heads)


class Attention(ModelPart, form=forms.AttentionForm):
    """Self-attention: head_h = softmax(Q_h K_hᵀ / √K) V_h;  output = [head_1 … head_H] W_O."""

    map = "softmax"
    position_places = ("rotate", "bias", "values")  # where it lets a position act

    def __init__(self, spec: SpecLike, place: Place):
        super().__init__()
        sizes = spec.sizes
        inner = sizes.heads * sizes.d_head  # free: need not be D
        self.place, self.heads = place, sizes.heads
        self.qkv = linear(sizes.d_model, 3 * inner, bias=False)  # W_Q, W_K, W_V side by side
        self.output = linear(inner, sizes.d_model, bias=False)  # W_O
        self.position = spec.position(spec, place)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        q, k, v = split_heads(self.qkv(x), self.heads, 3)
        q, k = self.position.rotate(q, call), self.position.rotate(k, call)
        return self.output(merge_heads(look(self.place, call, q, k, v, self.position)))


class CrossAttention(ModelPart, form=forms.CrossAttentionForm):
    """Attention with queries from the decoder, keys and values from the encoder's memory; no positions."""

    map = "softmax"

    def __init__(self, spec: SpecLike, place: Place):
        super().__init__()
        sizes = spec.sizes
        inner = sizes.heads * sizes.d_head
        self.place, self.heads = place, sizes.heads
        self.q = linear(sizes.d_model, inner, bias=False)
        self.kv = linear(sizes.d_model, 2 * inner, bias=False)
        self.output = linear(inner, sizes.d_model, bias=False)

    def keys_and_values(self, memory_SnD: Tensor) -> tuple[Tensor, ...]:
        return split_heads(self.kv(memory_SnD), self.heads, 2)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        (q,) = split_heads(self.q(x), self.heads, 1)
        return self.output(merge_heads(look_at_memory(self.place, call, q, self.keys_and_values)))


# 5 · Feed-forward: attention only averages; this is where each position computes ----------------------


class FeedForward(ModelPart, form=forms.FeedForwardForm):
    """φ(x W₁ + b₁) W₂ + b₂ at every position alike; φ is relu unless the spec says otherwise."""

    def __init__(self, spec: SpecLike, place: Place):
        super().__init__()
        self.inner = linear(spec.sizes.d_model, spec.sizes.d_ff, truncated)
        self.outer = linear(spec.sizes.d_ff, spec.sizes.d_model, truncated)
        self.activation = spec.activation

    def forward(self, x: Tensor, call: Call) -> Tensor:
        return self.outer(self.activation(self.inner(x)))


# 6 · What makes depth trainable: residual connections and layer norm ---------------------------------


def layer_norm(spec: SpecLike, place: Place) -> nn.Module:
    """g ⊙ (x − mean) / √(variance + ε) + b"""
    return nn.LayerNorm(spec.sizes.d_model, eps=1e-6)


class Residual(ModelPart):
    """x ← after(x, Sublayer(before(x))): the residual connection around each sub-layer."""

    def before(self, x: Tensor) -> Tensor:
        """The input of the sub-layer."""
        return x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        """x with the sub-layer's output y."""
        raise NotImplementedError

    def forward(self, x: Tensor, sublayer: Callable[[Tensor, Call], Tensor], call: Call) -> Tensor:
        return self.after(x, sublayer(self.before(x), call))


class PreNorm(Residual, form=forms.PreNormForm):
    """x ← x + Drop(Sublayer(Norm(x)))"""

    def __init__(self, spec: SpecLike, place: Place):
        super().__init__()
        self.norm = spec.norm(spec, place)
        self.dropout = Dropout(spec.sizes.dropout)

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.dropout(y)


def final_norm(spec: SpecLike, place: Place) -> nn.Module:
    """One more norm after the last layer, since pre-norm never normalises the residual stream itself."""
    return spec.norm(spec, place)


# 7 · The layers, and six of them on top of each other -------------------------------------------------


class EncoderLayer(ModelPart, form=forms.EncoderLayerForm):
    """Self-attention, then feed-forward. With a causal place it is the layer of a language model."""

    def __init__(self, spec: SpecLike, place: Place):
        super().__init__()
        self.attention = spec.attention(spec, place.named("attention"))
        self.around_attention = spec.residual(spec, place.named("attention"))
        self.feed_forward = spec.feed_forward(spec, place.named("feed_forward"))
        self.around_feed_forward = spec.residual(spec, place.named("feed_forward"))

    def forward(self, x: Tensor, call: Call) -> Tensor:
        x = self.around_attention(x, self.attention, call)
        return self.around_feed_forward(x, self.feed_forward, call)


class DecoderLayer(ModelPart, form=forms.DecoderLayerForm):
    """Masked self-attention, cross-attention to the encoder, feed-forward."""

    def __init__(self, spec: SpecLike, place: Place):
        super().__init__()
        self.attention = spec.attention(spec, place.named("attention"))
        self.around_attention = spec.residual(spec, place.named("attention"))
        self.cross = spec.cross(spec, place.named("cross"))
        self.around_cross = spec.residual(spec, place.named("cross"))
        self.feed_forward = spec.feed_forward(spec, place.named("feed_forward"))
        self.around_feed_forward = spec.residual(spec, place.named("feed_forward"))

    def forward(self, x: Tensor, call: Call) -> Tensor:
        x = self.around_attention(x, self.attention, call)
        x = self.around_cross(x, self.cross, call)
        return self.around_feed_forward(x, self.feed_forward, call)


class Stack(ModelPart, form=forms.StackForm):
    """Layer upon layer. → the states before and after each layer, the last one normed; and the call."""

    def __init__(self, spec: SpecLike, place: Place):
        super().__init__()
        layer = spec.decoder_layer if place.stack == "decoder" else spec.encoder_layer
        self.layers = nn.ModuleList(layer(spec, place.at(i)) for i in range(place.layers))
        self.final = spec.final(spec, place.named("final"))

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        states = [x]
        for depth, layer in enumerate(self.layers):
            states.append(run(layer, states[-1], replace(call, depth=depth)))
        return [*states[:-1], self.final(states[-1])], call

    def units(self) -> nn.ModuleList:
        return self.layers


def run(layer: Callable[[Tensor, Call], Any], x: Tensor, call: Call) -> Any:
    """layer(x, call); where the call asks for it, without keeping its activations for the backward pass."""
    return checkpoint(layer, x, call, use_reentrant=False) if call.recompute else layer(x, call)


class LastState(ModelPart, form=forms.LastStateForm):
    """Every decoder layer reads the encoder's last state. Built with the decoder's place."""

    def __init__(self, spec: SpecLike, place: Place):
        super().__init__()
        self.layers = place.layers

    def forward(self, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (states[-1],) * self.layers


# 8 · From words to vectors, and back: embeddings and the final softmax ---------------------------------


class TokenEmbedding(ModelPart, form=forms.EmbeddingForm):
    """A table E (V, D) of N(0, 1/D). In: √D · E[id], of unit variance. Out: logits x Eᵀ."""

    def __init__(self, spec: SpecLike, place: Place):
        super().__init__()
        width = spec.sizes.d_model
        self.weight = parameter((spec.sizes.vocabulary(place.stack), width), Normal(width**-0.5))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight) * math.sqrt(self.weight.shape[1])

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Tables(NamedTuple):
    """Which table serves which role; a table that serves several is shared."""

    source: nn.Module
    target: nn.Module
    output: nn.Module


def shared(spec: SpecLike) -> Tables:
    """One table for all three roles; with separate vocabularies, the source has its own."""
    table = spec.embedding(spec, spec.place("decoder"))
    source = table if spec.sizes.joint else spec.embedding(spec, spec.place("encoder"))
    return Tables(source=source, target=table, output=table)


class TokenInput(ModelPart, form=forms.InputForm):
    """Drop(√D · E[id] + position): the input of the first layer."""

    def __init__(self, spec: SpecLike, place: Place):
        super().__init__()
        self.position = spec.position(spec, place)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, ids: Tensor, table: TokenEmbedding, call: Call) -> tuple[Tensor, Call]:
        x = self.dropout(self.position.embed(table(ids), call))
        return x, replace(call, position=self.position.prepare(x, call), positioner=self.position)


class SoftmaxHead(ModelPart, form=forms.SoftmaxForm):
    """p(word | x) = softmax(x Eᵀ). The two verbs of every head; the table is the model's."""

    def __init__(self, spec: SpecLike, place: Place):
        super().__init__()

    def log_probs(self, x: Tensor, table: TokenEmbedding) -> Tensor:
        """(…, D) → (…, V), normalised."""
        logits = table.logits(x)
        return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))

    def loss(
        self, x: Tensor, table: TokenEmbedding, targets: Tensor, smoothing: float = 0.0, weights: Tensor | None = None
    ) -> Scored:
        """Σ −weight · log p(target), and how many targets count: without weights all but PAD."""
        return chunked_cross_entropy(table.logits, x, targets, list(table.parameters()), smoothing, weights)
