"""Fused attention, attention of few queries, and the folding of hypotheses that share keys.

Letters: B rows, H heads, L queries, M keys, K head width; S sentences with w hypotheses each, B = S·w.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sixfold.core.masks import Sight

_FEW = 8  # queries up to which plain products beat the fused kernel


def folding_hypotheses(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Let queries (S·w, H, L, K) share keys (S, H, M, K): the w hypotheses of a sentence are folded into one row."""

    @wraps(kernel)
    def folded(q: Tensor, k: Tensor, *rest: Any, **named: Any) -> Any:
        rows, sentences = q.shape[0], k.shape[0]
        if rows <= sentences:
            return kernel(q, k, *rest, **named)
        found = kernel(fold(q, sentences), k, *rest, **named)
        return unfold(found, rows) if isinstance(found, Tensor) else tuple(unfold(each, rows) for each in found)

    return folded


@folding_hypotheses
def attend(q: Tensor, k: Tensor, v: Tensor, sight: Sight, bias: Tensor | None = None) -> Tensor:
    """softmax(Q Kᵀ / √K + bias) V, by a fused kernel: the weights are never held. → (B, H, L, K)"""
    if bias is None:
        kernel = _attend_few if _has_few_queries(q) else F.scaled_dot_product_attention
        return kernel(q, k, v, attn_mask=sight.mask, is_causal=sight.causal)
    mask = sight.written_out(q)
    return F.scaled_dot_product_attention(q, k, v, bias if mask is None else bias.masked_fill(~mask, -torch.inf))


def _has_few_queries(q: Tensor) -> bool:
    """Whether plain products are faster for these queries (…, L, K), as in decoding. (Not tried with gradients.)"""
    if torch.compiler.is_exporting():  # an exported program must serve any number of queries
        return False
    return q.shape[-2] <= _FEW and q.device.type == "cpu" and not torch.is_grad_enabled()


def _attend_few(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    """softmax(Q Kᵀ / √K) V, where a mask (B or 1, H or 1, L or 1, M) is True. → (B, H, L, K), as the kernel's"""
    scores_BHLM = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores_BHLM.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if attn_mask is not None:
        scores_BHLM.masked_fill_(~attn_mask, torch.finfo(scores_BHLM.dtype).min)
    return scores_BHLM.softmax(-1) @ v


def fold(q: Tensor, sentences: int) -> Tensor:
    """(S·w, H, L, K) → (S, H, w·L, K): one row for the w hypotheses of a sentence."""
    if q.shape[0] == sentences:
        return q
    return q.unflatten(0, (sentences, -1)).transpose(1, 2).flatten(2, 3)


def unfold(heads: Tensor, rows: int) -> Tensor:
    """(S, H, w·L, K) → (S·w, H, L, K)."""
    if heads.shape[0] == rows:
        return heads
    return heads.unflatten(2, (rows // heads.shape[0], -1)).transpose(1, 2).flatten(0, 1)
