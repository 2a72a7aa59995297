"""Another head shape in cross-attention."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import nn

from sixfold.core.place import Place, Sizes
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import CrossAttention


def resized(spec: Spec, place: Place, heads: int, d_head: int) -> nn.Module:
    return CrossAttention(Spec(sizes=replace(spec.sizes, heads=heads, d_head=d_head)), place)


def added(sizes: Sizes, heads: int = 8, d_head: int = 64) -> int:
    return sizes.decoder_layers * 4 * sizes.d_model * (heads * d_head - sizes.heads * sizes.d_head)


@modification(adds=added, most={"heads": 4_096, "d_head": 65_536})
def cross_heads(spec: Spec, *, heads: int = 8, d_head: int = 64) -> Spec:
    """Cross-attention has its own number and width of heads, independent of self-attention.

    The study's Synthesizers ran with 8 heads of 128 in self-attention and 12 of 64 in cross-attention.
    Parameters: 4 · d_model · heads · d_head in each decoder layer, instead of those given by the sizes.
    """
    if heads < 1 or d_head < 1:
        raise ValueError(f"cross_heads: heads and d_head must be at least 1, got {heads} and {d_head}")
    return replace(spec, cross=partial(resized, heads=heads, d_head=d_head))
