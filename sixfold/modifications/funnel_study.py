"""Funnel Transformer, as Narang et al. (2021) ran it."""

from __future__ import annotations

from torch import Tensor

from sixfold.core.call import Call
from sixfold.modifications.funnel import NarrowingLayer, mean_of_neighbours, shortened, with_stack
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


class PooledStates(NarrowingLayer):
    """Self-attention among all, then the mean of neighbours, then feed-forward."""

    def forward(self, x: Tensor, call: Call) -> Tensor:
        x, after = self.around_attention(x, self.attention, call), shortened(call, x, self.pool)
        return self.around_feed_forward(mean_of_neighbours(x, call, self.pool), self.feed_forward, after)


@modification("2102.11972", adds=lambda sizes, **_: 0, most={"blocks": 1_000, "pool": 1_000_000})
def funnel_study(spec: Spec, *, blocks: int = 3, pool: int = 2) -> Spec:
    """`funnel` as Narang et al. (2021) ran it: it pools the states after attention instead of the queries.

    It works with any attention; the page of `funnel` has the rest. Parameters: none.
    """
    return with_stack("funnel_study", spec, blocks, pool, PooledStates)
