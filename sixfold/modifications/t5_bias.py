"""T5's relative position bias."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from sixfold.core import forms
from sixfold.core.call import Call
from sixfold.core.init import Glorot, parameter
from sixfold.core.place import Place, Sizes
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Position


def bucket(distance: Tensor, buckets: int, max_distance: int, causal: bool) -> Tensor:
    """Distances j − i (key minus query) → buckets: near ones exactly, far ones by their logarithm.

    Looking both ways, half of the buckets are for keys after the query; of each half, the first
    half is exact. Looking back only, all buckets are for keys before.
    """
    if causal:
        offset, near = torch.zeros_like(distance), (-distance).clamp(min=0)
    else:
        buckets //= 2
        offset, near = (distance > 0) * buckets, distance.abs()
    exact = buckets // 2
    ratio = (near.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
    far = exact + (ratio * (buckets - exact)).long()
    return offset + torch.where(near < exact, near, far.clamp(max=buckets - 1))


class T5Bias(Position, form=forms.T5BiasForm):
    """scores_hij ← scores_hij + b[h, bucket(j − i)], one table b for a stack, or one for each layer."""

    def __init__(self, spec: Spec, place: Place, buckets: int, max_distance: int, per_layer: bool):
        super().__init__(spec, place)
        self.buckets, self.max_distance, self.causal = buckets, max_distance, place.causal
        self.register_parameter("table", None)
        if per_layer == (place.layer is not None):
            self.table = parameter((buckets, spec.sizes.heads), Glorot())
        self.per_layer = per_layer

    def prepare(self, x: Tensor, call: Call) -> Tensor:
        """The buckets (B or 1, L, M) if layers have their own tables, else the bias (B or 1, H, L, M)."""
        distance = call.key_positions[:, None, :] - call.positions[:, :, None]
        buckets = bucket(distance, self.buckets, self.max_distance, self.causal)
        return buckets if self.per_layer else self.look_up(buckets)

    def look_up(self, buckets: Tensor) -> Tensor:
        return F.embedding(buckets, self.table).permute(0, 3, 1, 2)

    def bias(self, q: Tensor, call: Call) -> Tensor:
        return self.look_up(call.position) if self.per_layer else call.position


def added(sizes: Sizes, buckets: int = 32, max_distance: int = 128, per_layer: bool = False) -> int:
    tables = sizes.encoder_layers + sizes.decoder_layers if per_layer else 2
    return tables * buckets * sizes.heads


@modification("1910.10683", adds=added, most={"buckets": 100_000, "max_distance": 1_000_000_000})
def t5_bias(spec: Spec, *, buckets: int = 32, max_distance: int = 128, per_layer: bool = False) -> Spec:
    """A learned number for each head and distance, added to the scores.

        scores_hij = q_hi · k_hj / √K + b[h, bucket(j − i)]

    Short distances have a bucket each, longer ones share buckets by their logarithm, and from
    `max_distance` on all share the last. An encoder tells before from after; a decoder has all its
    buckets for before. The bias comes after the scaling by √K; cross-attention has none. No absolute
    positions are added. `per_layer` gives every layer its own table instead of one for the stack.
    Parameters: buckets · heads for each stack (each layer).
    """
    if buckets < 4 or buckets % 4:
        raise ValueError(f"t5_bias: buckets must be a multiple of 4, got {buckets}")
    if max_distance <= buckets // 2:
        raise ValueError(f"t5_bias: max_distance must be more than half the buckets, got {max_distance} for {buckets}")
    return replace(spec, position=partial(T5Bias, buckets=buckets, max_distance=max_distance, per_layer=per_layer))
