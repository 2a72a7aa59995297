"""Attention of few queries, as in decoding: plain products are faster than the fused kernel, which is made for many."""

from __future__ import annotations

import math

import torch
from torch import Tensor

MOST = 8  # queries


def few(q: Tensor) -> bool:
    """Whether so few queries (…, L, K) are asked that `attend_few` is faster. (It is not tried with gradients.)"""
    if torch.compiler.is_exporting():  # a program must serve any number of queries
        return False
    return q.shape[-2] <= MOST and q.device.type == "cpu" and not torch.is_grad_enabled()


def attend_few(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    """softmax(Q Kᵀ / √K) V, where a mask (B or 1, H or 1, L or 1, M) is True. → (B, H, L, K), as the kernel's"""
    scores_BHLM = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores_BHLM.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if attn_mask is not None:
        scores_BHLM.masked_fill_(~attn_mask, torch.finfo(scores_BHLM.dtype).min)
    return scores_BHLM.softmax(-1) @ v
