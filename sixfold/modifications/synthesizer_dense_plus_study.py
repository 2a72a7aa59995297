"""The dense Synthesizer beside attention, as Narang et al. (2021) ran it."""

from __future__ import annotations

from sixfold.core.place import Sizes
from sixfold.modifications._shared.synthesizer import (
    SharedDense,
    SynthesizerPlus,
    more_parameters,
    shared_dense_parameters,
    synthesizing,
)
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def added(sizes: Sizes, length: int = 512) -> int:
    return more_parameters(sizes, shared_dense_parameters(sizes, length), 0)


@modification("2102.11972", adds=added, most={"length": 100_000})
def synthesizer_dense_plus_study(spec: Spec, *, length: int = 512) -> Spec:
    """`synthesizer_dense_plus` as Narang et al. (2021) ran it: one table for all heads, read by the queries.

        scores_hij = q_i · k_j / √K + (relu(q_i) P)[j],   P ∈ R^(d_head × length)

    Parameters: d_head·length more for each self-attention.
    """
    return synthesizing(spec, SynthesizerPlus, length, SharedDense)
