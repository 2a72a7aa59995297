"""Shaw's relative positions."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from torch import Tensor

from sixfold.core import forms
from sixfold.core.call import Call
from sixfold.core.init import Normal, parameter
from sixfold.core.place import Place, Sizes
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Position


class Shaw(Position, form=forms.ShawForm):
    """A vector for each clipped distance c(j − i), added to keys and to values; own tables in each layer."""

    def __init__(self, spec: Spec, place: Place, distance: int, per_head: bool):
        super().__init__(spec, place)
        self.distance = distance
        self.register_parameter("keys", None)
        self.register_parameter("to_values", None)
        if place.layer is None:  # the stack needs no tables, only the distances
            return
        shape = (spec.sizes.heads if per_head else 1, 2 * distance + 1, spec.sizes.d_head)
        start = Normal(spec.sizes.d_head**-0.5)
        self.keys = parameter(shape, start)  # a^K, (H or 1, R, K) for R distances
        self.to_values = parameter(shape, start)  # a^V

    def prepare(self, x: Tensor, call: Call) -> Tensor:
        """Row of the tables for each query and key, (B or 1, 1, L, M)."""
        distance_BLM = call.key_positions[:, None, :] - call.positions[:, :, None]
        return (distance_BLM.clamp(-self.distance, self.distance) + self.distance)[:, None]

    def bias(self, q: Tensor, call: Call) -> Tensor:
        """q_i · a^K_c(j−i) / √K: the product with each of the R vectors, then picked for each key."""
        products_BHLR = q @ self.keys.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return products_BHLR.gather(-1, call.position.expand(*q.shape[:2], -1, -1))

    def values(self, weights_BHLM: Tensor, call: Call) -> Tensor:
        """Σ_j weight_ij a^V_c(j−i): the weights summed by distance, then one product."""
        rows = self.to_values.shape[-2]
        by_distance_BHLR = weights_BHLM.new_zeros(*weights_BHLM.shape[:-1], rows)
        by_distance_BHLR = by_distance_BHLR.scatter_add(-1, call.position.expand_as(weights_BHLM), weights_BHLM)
        return by_distance_BHLR @ self.to_values


def added(sizes: Sizes, distance: int = 16, per_head: bool = False) -> int:
    in_a_layer = 2 * (2 * distance + 1) * sizes.d_head * (sizes.heads if per_head else 1)
    return (sizes.encoder_layers + sizes.decoder_layers) * in_a_layer


@modification("1803.02155", adds=added, most={"distance": 1_000_000})
def shaw(spec: Spec, *, distance: int = 16, per_head: bool = False) -> Spec:
    """Keys and values get a learned vector for their distance from the query.

        scores_ij = q_i · (k_j + a^K[c(j − i)]) / √K        c(r) = clip(r, −distance, distance)
        output_i  = Σ_j weight_ij (v_j + a^V[c(j − i)])

    Self-attention only; own tables in each layer, shared by its heads unless `per_head`. No absolute
    positions are added. The L × M × K tensor of the formula is never computed: queries are multiplied by the
    2·distance + 1 vectors first, and weights are summed by distance before the product with a^V.
    Parameters: 2 · (2·distance + 1) · d_head for each self-attention, times heads if `per_head`.
    """
    if distance < 1:
        raise ValueError(f"shaw: distance must be at least 1, got {distance}")
    return replace(spec, position=partial(Shaw, distance=distance, per_head=per_head))
