"""Synthesizers: attention weights that are not computed from query-key products.

Letters: B rows, H heads, L queries, M keys, N positions of a table, C its columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.core.attention_kernels import attend
from sixfold.core.call import Call
from sixfold.core.init import Truncated, Uniform, linear, parameter, truncated
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.spec.spec import Spec
from sixfold.transformer import Attention, attend_explicitly, merge_heads, split_heads

# Where synthetic scores S (B or 1, H, L, M) come from -------------------------------------------------


def rows(table_HNC: Tensor, positions: Tensor) -> Tensor:
    """Rows of a table by position, (B or 1, L) → (B or 1, H, L, C)."""
    return table_HNC.index_select(1, positions.flatten()).unflatten(1, positions.shape).transpose(0, 1)


class Random(nn.Module):
    """S_ij = R[i, j]: learned, and the same for every text."""

    reads_queries = False

    def __init__(self, sizes: Sizes, length: int):
        super().__init__()
        self.table = parameter((sizes.heads, length, length), Uniform((3 / length) ** 0.5))  # R: Glorot, for each head

    def forward(self, x: Tensor, q: Tensor | None, call: Call) -> Tensor:
        i, j = call.positions[:, :, None], call.key_positions[:, None, :]
        cell_BLM = i * self.table.shape[-1] + j  # index in the flattened table
        return rows(self.table.flatten(1)[..., None], cell_BLM.flatten(1)).unflatten(2, cell_BLM.shape[1:])[..., 0]


class Factorized(nn.Module):
    """S_ij = R₁[i] · R₂[j], of low rank."""

    reads_queries = False

    def __init__(self, sizes: Sizes, length: int, rank: int):
        super().__init__()
        self.first, self.second = (_glorot(sizes.heads, length, rank) for _ in range(2))  # R₁, R₂

    def forward(self, x: Tensor, q: Tensor | None, call: Call) -> Tensor:
        return rows(self.first, call.positions) @ rows(self.second, call.key_positions).transpose(-2, -1)


class SharedFactorized(nn.Module):
    """S_ij = R₁[j] · R₂[j], the same for every query, as in Narang et al. (2021)."""

    reads_queries = False

    def __init__(self, sizes: Sizes, length: int, rank: int):
        super().__init__()
        self.first, self.second = (_glorot(sizes.heads, length, rank) for _ in range(2))  # R₁, R₂

    def forward(self, x: Tensor, q: Tensor | None, call: Call) -> Tensor:
        scores_HN1 = (self.first * self.second).sum(-1, keepdim=True)
        return rows(scores_HN1, call.key_positions).transpose(-2, -1).expand(-1, -1, x.shape[1], -1)


class Dense(nn.Module):
    """S_ij = (relu(x_i W₁ + b₁) W₂ + b₂)[j]: each token scores all positions; each head has its own map."""

    reads_queries = False

    def __init__(self, sizes: Sizes, length: int):
        super().__init__()
        self.heads = sizes.heads
        self.inner = linear(sizes.d_model, sizes.heads * sizes.d_head, truncated)  # W₁ of all heads
        self.outer = _fan_in(sizes.heads, length, sizes.d_head)  # W₂ of each
        self.bias = nn.Parameter(torch.zeros(sizes.heads, length, 1))

    def forward(self, x: Tensor, q: Tensor | None, call: Call) -> Tensor:
        (hidden,) = split_heads(F.relu(self.inner(x)), self.heads, 1)
        outer, bias = (rows(table, call.key_positions).transpose(-2, -1) for table in (self.outer, self.bias))
        return hidden @ outer + bias


class SharedDense(nn.Module):
    """S_ij = (relu(q_i) P)[j], with one P for all heads, as in Narang et al. (2021)."""

    reads_queries = True

    def __init__(self, sizes: Sizes, length: int):
        super().__init__()
        self.outer = _fan_in(1, length, sizes.d_head)  # P

    def forward(self, x: Tensor, q: Tensor, call: Call) -> Tensor:
        return F.relu(q) @ rows(self.outer, call.key_positions).transpose(-2, -1)


def _glorot(heads: int, length: int, rank: int) -> nn.Parameter:
    return parameter((heads, length, rank), Uniform((6 / (length + rank)) ** 0.5))


def _fan_in(*shape: int) -> nn.Parameter:
    return parameter(shape, Truncated(shape[-1] ** -0.5))


# Attention with synthetic scores ------------------------------------------------------------------------


class Synthesizer(ModelPart):
    """head_h = softmax(S_h + bias) V_h: no keys."""

    map = "softmax"
    position_places = ("bias",)

    def __init__(self, spec: Spec, place: Place, length: int, scores: Callable[[Sizes, int], nn.Module]):
        super().__init__()
        sizes = spec.sizes
        inner = sizes.heads * sizes.d_head
        self.place, self.heads, self.limit = place, sizes.heads, length
        self.scores = scores(sizes, length)
        self.parts = 2 if self.scores.reads_queries else 1
        self.qv = linear(sizes.d_model, self.parts * inner, bias=False)
        self.output = linear(inner, sizes.d_model, bias=False)
        self.position = spec.position(spec, place)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        *queries, v = split_heads(self.qv(x), self.heads, self.parts)
        (v,) = call.grow(self.place, v)
        nothing_L, nothing_M = x.new_zeros(1, 1, x.shape[1], 1), x.new_zeros(1, 1, v.shape[2], 1)  # as q and k
        scores_BHLM = self.scores(x, queries[0] if queries else None, call)
        bias = self.position.bias(nothing_L, call)
        scores_BHLM = scores_BHLM if bias is None else scores_BHLM + bias
        heads, weights = attend_explicitly(nothing_L, nothing_M, v, call.sight, scores_BHLM)
        call.show(self.place, weights=weights.expand(x.shape[0], -1, -1, -1), v=v, bias=scores_BHLM, heads=heads)
        return self.output(merge_heads(call.gate(self.place, heads)))


class SynthesizerPlus(Attention):
    """head_h = softmax(Q_h K_hᵀ / √K + S_h + bias) V_h; with alpha, the first two are weighed 1 − a and a."""

    map = "softmax"
    position_places = Attention.position_places

    def __init__(
        self, spec: Spec, place: Place, length: int, scores: Callable[[Sizes, int], nn.Module], alpha: bool = False
    ):
        super().__init__(spec, place)
        self.limit = length
        self.scores = scores(spec.sizes, length)
        self.alpha = nn.Parameter(torch.zeros(1)) if alpha else None  # a = σ(α)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        q, k, v = split_heads(self.qkv(x), self.heads, 3)
        bias_BHLM = self.scores(x, q, call)
        q, k = self.position.rotate(q, call), self.position.rotate(k, call)
        k, v = call.grow(self.place, k, v)
        position = self.position.bias(q, call)
        if self.alpha is not None:
            a = self.alpha.sigmoid()
            q, bias_BHLM = (1 - a) * q, a * bias_BHLM
        bias_BHLM = bias_BHLM if position is None else bias_BHLM + position
        if not self.position.fills("values") and not call.watched(self.place):
            heads = attend(q, k, v, call.sight, bias_BHLM)
        else:
            heads, weights = attend_explicitly(q, k, v, call.sight, bias_BHLM)
            heads = heads + self.position.values(weights, call)
            call.show(self.place, weights=weights, q=q, k=k, v=v, bias=bias_BHLM, heads=heads)
        return self.output(merge_heads(call.gate(self.place, heads)))


# Shared by the modifications ------------------------------------------------------------------


def synthesizing(spec: Spec, part: Callable[..., nn.Module], length: int, scores: Callable[..., nn.Module]) -> Spec:
    """The spec with this part as its attention, for texts of at most `length` tokens."""
    if length < 1:
        raise ValueError(f"a synthesizer's length must be at least 1, got {length}")
    return replace(spec, attention=partial(part, length=length, scores=scores))


def check_rank(name: str, rank: int) -> None:
    if rank < 1:
        raise ValueError(f"{name}: rank must be at least 1, got {rank}")


def more_parameters(sizes: Sizes, scores: int, matrices: int) -> int:
    """Additional parameters: in each self-attention `scores`, and `matrices` projections d × heads·d_head."""
    each = scores + matrices * sizes.d_model * sizes.heads * sizes.d_head
    return (sizes.encoder_layers + sizes.decoder_layers) * each


def dense_parameters(sizes: Sizes, length: int) -> int:
    """The parameters of Dense."""
    inner = sizes.heads * sizes.d_head
    return sizes.d_model * inner + inner + inner * length + sizes.heads * length  # W₁, b₁, W₂, b₂


def shared_dense_parameters(sizes: Sizes, length: int) -> int:
    """The parameters of `SharedDense`."""
    return sizes.d_head * length  # P
