"""The random Synthesizer of low rank, as Narang et al. (2021) ran it."""

from __future__ import annotations

from functools import partial

from sixfold.modifications._shared.synthesizer import SharedFactorized, Synthesizer, check_rank, synthesizing
from sixfold.modifications.synthesizer_factorized import added
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


@modification("2102.11972", adds=added, most={"length": 100_000, "rank": 65_536})
def synthesizer_factorized_study(spec: Spec, *, length: int = 512, rank: int = 16) -> Spec:
    """`synthesizer_factorized` as Narang et al. (2021) ran it: all queries have the same scores.

        scores_hij = R₁_h[j] · R₂_h[j],   R₁_h, R₂_h ∈ R^(length × rank);   no queries, no keys

    The study's library multiplied the two tables along one axis.
    Parameters: 2·d·heads·d_head + 2·rank·heads·length in place of each self-attention's 4·d·heads·d_head.
    """
    check_rank("synthesizer_factorized_study", rank)
    return synthesizing(spec, Synthesizer, length, partial(SharedFactorized, rank=rank))
