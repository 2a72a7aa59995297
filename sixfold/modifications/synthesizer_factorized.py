"""The random Synthesizer of low rank."""

from __future__ import annotations

from functools import partial

from sixfold.core.place import Sizes
from sixfold.modifications._shared.synthesizer import (
    Factorized,
    SharedFactorized,
    Synthesizer,
    more_parameters,
    synthesizing,
)
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def added(sizes: Sizes, length: int = 512, rank: int = 16, study: bool = False) -> int:
    return more_parameters(sizes, 2 * rank * sizes.heads * length, -2)


@modification("2005.00743", adds=added)
def synthesizer_factorized(spec: Spec, *, length: int = 512, rank: int = 16, study: bool = False) -> Spec:
    """Attention weights are learned and the same for every text, from a table of low rank.

        scores_hij = R₁_h[i] · R₂_h[j],   R₁_h, R₂_h ∈ R^(length × rank);   no queries, no keys

    `study`: R₁_h[j] · R₂_h[j]. Its library multiplied the tables along one axis, so all queries had the same scores.
    Parameters: 2·d·heads·d_head + 2·rank·heads·length for each self-attention's 4·d·heads·d_head.
    """
    if rank < 1:
        raise ValueError(f"synthesizer_factorized: rank must be at least 1, got {rank}")
    return synthesizing(spec, Synthesizer, length, partial(SharedFactorized if study else Factorized, rank=rank))
