"""Attention of the newest token of each hypothesis to all slots of its sentence: two products of many small matrices.

Letters: S sentences, w hypotheses of each, H heads, K head width, M slots.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from sixfold.decoding.room import BLOCK, FINE, GRAINS, Grain


def look(q: Tensor, k: Tensor, v: Tensor, hiding: Tensor) -> Tensor:
    """Queries (S·w, H, K), keys and values (S, H, M, K), what is added to hide slots (S or 1, 1, w or 1, M)

    → the heads' outputs (S·w, H·K)
    """
    sentences, heads, slots, width = k.shape
    rows, several = len(q), len(q) // sentences
    if several > 1:
        q = q.view(sentences, several, heads, width).transpose(1, 2)
    q = q.reshape(sentences * heads, several, width)
    products = torch.bmm(q, k.flatten(0, 1).transpose(1, 2)).view(sentences, heads, several, slots)
    weights = torch.add(hiding, products, alpha=1 / math.sqrt(width)).softmax(-1)
    found = _summed(weights.flatten(0, 1), v.flatten(0, 1))
    if several > 1:
        found = found.view(sentences, heads, several, width).transpose(1, 2)
    return found.reshape(rows, heads * width)


def _summed(weights: Tensor, v: Tensor) -> Tensor:
    """Products (S·H, w, M) · (S·H, M, K), block by block: of long sums, a product would choose its blocks by M."""
    found = torch.bmm(weights[..., :BLOCK], v[:, :BLOCK])
    for start in range(BLOCK, v.shape[1], BLOCK):
        found += torch.bmm(weights[..., start : start + BLOCK], v[:, start : start + BLOCK])
    return found


def hide(mask: Tensor, precision: torch.dtype, grain: Grain) -> Tensor:
    """A mask (…, M), True where one may look → what is added to scores of M slots, and of those that a grain adds."""
    slots = mask.shape[-1]
    hiding = mask.new_full((*mask.shape[:-1], grain.whole(slots)), torch.finfo(precision).min, dtype=precision)
    hiding[..., :slots].masked_fill_(mask, 0)
    return hiding


@cache
def steady(width: int) -> Grain | None:
    """By which grain heads of this width find the same to the last bit, however many slots are hidden in whose company.

    That depends on how a machine multiplies small matrices: it is tried. None: by none.
    """
    cases = [(several, used) for several in (1, 2, 4, 5, 8) for used in (5, 21, 90)]
    cases += [(1, 285), (4, 429)]  # longer than a block
    return next((grain for grain in GRAINS if all(_same(width, *case, grain) for case in cases)), None)


@torch.inference_mode()
def _same(width: int, several: int, used: int, grain: Grain) -> bool:
    """Whether so many hypotheses of a sentence find the same in other company."""
    lengths = [grain.whole(used + more) for more in (0, grain.size, 8 * grain.size, 256)]
    sentences, heads, most = 6, 2, lengths[-1]
    chance = torch.Generator().manual_seed(1)
    q = torch.randn(sentences * several, heads, width, generator=chance)
    k, v = torch.randn(2, sentences, heads, most, width, generator=chance).unbind(0)
    found = []
    for slots in lengths:
        hiding = hide((torch.arange(slots) < used)[None, None, None], q.dtype, FINE)
        for number in (1, sentences):
            seen = look(q[: number * several], k[:number, :, :slots], v[:number, :, :slots], hiding)
            found.append(seen[:several])
    return all(torch.equal(found[0], other) for other in found)
