"""Product-key memory: one feed-forward network becomes a memory of many values.

Letters: B rows, L tokens, H heads, K the width of half a key, n sub-keys of each half, c nearest ones, D model width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.core.call import Call
from sixfold.core.init import Normal, Uniform, linear, parameter, truncated
from sixfold.core.place import Place, Sizes
from sixfold.spec.registry import modification
from sixfold.spec.spec import Group, Spec, set_apart
from sixfold.transformer import FeedForward


class ProductKeys(nn.Module):
    """y = Σ_h Σ_i softmax(s_h)[i] V[i], over the pairs i = (i₁, i₂) with the largest s_h[i] = q₁·k₁[i₁] + q₂·k₂[i₂]."""

    def __init__(self, spec: Spec, place: Place, heads: int, keys: int, d_key: int, nearest: int):
        super().__init__()
        width, half = spec.sizes.d_model, d_key // 2
        self.lookups, self.nearest = heads, nearest
        self.query = linear(width, heads * d_key, truncated)
        self.norm = nn.LayerNorm(half, eps=1e-6)
        self.sub_keys = parameter((2, heads, keys, half), Uniform(half**-0.5))
        self.values = parameter((keys * keys, width), Normal(width**-0.5))

    def forward(self, x: Tensor, call: Call) -> Tensor:
        slots, weights = (t.flatten(2).flatten(0, 1) for t in self.find(x))  # (B·L, H·c)
        weights = weights.to(self.values.dtype)
        return F.embedding_bag(slots, self.values, per_sample_weights=weights, mode="sum").view(x.shape).to(x.dtype)

    def find(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The slots of the nearest values and their weights, (B, L, H, c) each.

        Both halves of a pair among the c best are among the c best of their side; otherwise there would be c better
        pairs. So c² sums suffice instead of n².
        """
        queries_BLH2K = self.norm(self.query(x).unflatten(-1, (self.lookups, 2, -1)))
        scores_BLH2n = torch.einsum("blhsk,shnk->blhsn", queries_BLH2K, self.sub_keys)
        best_BLH2c, which_BLH2c = scores_BLH2n.topk(self.nearest)
        (first, second), (i, j) = best_BLH2c.unbind(-2), which_BLH2c.unbind(-2)
        sums_BLHcc = first[..., :, None] + second[..., None, :]
        scores_BLHc, pair = sums_BLHcc.flatten(-2).topk(self.nearest)
        i, j = i.gather(-1, pair // self.nearest), j.gather(-1, pair % self.nearest)
        return i * self.sub_keys.shape[2] + j, scores_BLHc.softmax(-1)


def in_one_layer(spec: Spec, place: Place, layer: int | None, **options: int) -> nn.Module:
    """The memory in one layer of the decoder, or of the only stack; plain feed-forward networks elsewhere."""
    if place.stack == "encoder":
        return FeedForward(spec, place)
    chosen = max(place.layers - 2, 0) if layer is None else layer
    if chosen >= place.layers:
        raise ValueError(f"product_keys: there is no layer {chosen} in a stack of {place.layers}, counted from 0")
    return ProductKeys(spec, place, **options) if place.layer == chosen else FeedForward(spec, place)


def values_apart(model: nn.Module) -> list[Group]:
    """Values have no weight decay: most are not read in a step, and would decay without being trained."""
    values = [part.values for part in model.modules() if isinstance(part, ProductKeys)]
    return set_apart(model, Group("memory values", values, decay=False))


def added(
    sizes: Sizes, layer: int | None = None, heads: int = 4, keys: int = 512, d_key: int = 128, nearest: int = 32
) -> int:
    plain = 2 * sizes.d_model * sizes.d_ff + sizes.d_ff + sizes.d_model
    query, norm, sub_keys = (sizes.d_model + 1) * heads * d_key, d_key, heads * keys * d_key
    return keys**2 * sizes.d_model + query + norm + sub_keys - plain


@modification(
    "1907.05242", adds=added, most={"layer": 1_000, "heads": 4_096, "keys": 10_000, "d_key": 65_536, "nearest": 1_000}
)
def product_keys(
    spec: Spec, *, layer: int | None = None, heads: int = 4, keys: int = 512, d_key: int = 128, nearest: int = 32
) -> Spec:
    """One feed-forward network of the decoder becomes a memory with keys² values, of which few are read.

        q = LN(x W_q + b), in two halves      s[i₁, i₂] = q₁ · k₁[i₁] + q₂ · k₂[i₂]      i₁, i₂ = 1 … keys
        y = Σ_heads Σ_{the nearest pairs i} softmax(s)[i] V[i]

    The best pairs consist of the best halves: of each half the `nearest` sub-keys are taken, and of their nearest²
    sums the `nearest` are kept. Each head has its own sub-keys; all read the same values, and their results
    are added. The paper normalises queries over the batch. Here, as in Narang et al. (2021), a layer norm on
    each half does, so that no text depends on others. The memory is in the layer before the last, or in `layer`
    (counted from 0). Values get no weight decay; the paper trains them with a constant rate of 1e-3.
    Parameters: keys² · d_model + heads · d_key · (d_model + 1 + keys) + d_key instead of those of a
    feed-forward network.
    """
    for option, value, least in (("layer", layer or 0, 0), ("heads", heads, 1), ("keys", keys, 1), ("d_key", d_key, 2)):
        if value < least:
            raise ValueError(f"product_keys: {option} must be at least {least}, got {value}")
    if d_key % 2:
        raise ValueError(f"product_keys: d_key must be even, got {d_key}")
    if not 1 <= nearest <= keys:
        raise ValueError(f"product_keys: nearest must be from 1 to keys ({keys}), got {nearest}")
    part = partial(in_one_layer, layer=layer, heads=heads, keys=keys, d_key=d_key, nearest=nearest)
    return replace(spec, feed_forward=part, groups=values_apart)
