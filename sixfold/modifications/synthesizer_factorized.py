"""The random Synthesizer of low rank."""

from __future__ import annotations

from functools import partial

from sixfold.core.place import Sizes
from sixfold.modifications._shared.synthesizer import Factorized, Synthesizer, check_rank, more_parameters, synthesizing
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def added(sizes: Sizes, length: int = 512, rank: int = 16) -> int:
    return more_parameters(sizes, 2 * rank * sizes.heads * length, -2)


@modification("2005.00743", adds=added, most={"length": 100_000, "rank": 65_536})
def synthesizer_factorized(spec: Spec, *, length: int = 512, rank: int = 16) -> Spec:
    """Attention weights are learned and the same for every text, from a table of low rank.

        scores_hij = R₁_h[i] · R₂_h[j],   R₁_h, R₂_h ∈ R^(length × rank);   no queries, no keys

    Parameters: 2·d·heads·d_head + 2·rank·heads·length in place of each self-attention's 4·d·heads·d_head.
    """
    check_rank("synthesizer_factorized", rank)
    return synthesizing(spec, Synthesizer, length, partial(Factorized, rank=rank))
