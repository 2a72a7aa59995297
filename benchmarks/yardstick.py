"""The yardstick: an encoder-decoder Transformer in plain PyTorch, written by hand for this one purpose.

What a good engineer would write who needs this model and no other: no options, no hooks, no cache, no
padding, only what training on full rows takes. Pre-norm, as sixfold's vanilla model.

Letters: B rows, L queries, M keys, D model width, H heads, K head width, V words. x is (B, L, D).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sinusoid(length: int, width: int) -> Tensor:
    """p[t, 2i] = sin(t / 10000^(2i/D)),  p[t, 2i+1] = cos(t / 10000^(2i/D)): (length, D)"""
    angles = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000) / width))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


class Attention(nn.Module):
    """Self-attention, or with a memory cross-attention; the projections are packed."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, cross: bool = False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q = nn.Linear(width, width, bias=False) if cross else None
        self.kv = nn.Linear(width, (2 if cross else 3) * width, bias=False)  # q, k and v in self-attention
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        if self.q is None:
            q, k, v = self.split(self.kv(x), 3)
        else:
            (q,), (k, v) = self.split(self.q(x), 1), self.split(self.kv(memory), 2)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.output(heads.transpose(1, 2).flatten(-2))

    def split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B, L, parts·H·K) → that many (B, H, L, K), without a copy; in the backward pass there is one."""
        return tuple(part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in x.chunk(parts, dim=-1))


class Layer(nn.Module):
    """x ← x + Drop(Sublayer(Norm(x))): self-attention, cross-attention in the decoder, feed-forward."""

    def __init__(self, width: int, heads: int, dropout: float, *, decoder: bool):
        super().__init__()
        self.attention = Attention(width, heads, causal=decoder)
        self.cross = Attention(width, heads, cross=True) if decoder else None
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if decoder else 2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self.norms[0](x)))
        if self.cross is not None:
            x = x + self.dropout(self.cross(self.norms[1](x), memory))
        return x + self.dropout(self.feed_forward(self.norms[-1](x)))


class Yardstick(nn.Module):
    """Source (B, M), inputs and targets (B, L) → the mean cross-entropy. One table serves all three."""

    def __init__(self, words: int, width: int, heads: int, layers: int, dropout: float, length: int):
        super().__init__()
        self.table = nn.Embedding(words, width)
        nn.init.normal_(self.table.weight, std=width**-0.5)
        self.register_buffer("positions", sinusoid(length, width), persistent=False)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList(Layer(width, heads, dropout, decoder=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(width, heads, dropout, decoder=True) for _ in range(layers))
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.table(ids) * math.sqrt(self.table.embedding_dim) + self.positions[: ids.shape[1]])

    def forward(self, source: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.encoder_norm(memory)
        x = self.embed(inputs)
        for layer in self.decoder:
            x = layer(x, memory)
        logits = F.linear(self.decoder_norm(x), self.table.weight)  # (B, L, V)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
