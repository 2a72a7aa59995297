"""The dense Synthesizer, as Narang et al. (2021) ran it."""

from __future__ import annotations

from sixfold.core.place import Sizes
from sixfold.modifications._shared.synthesizer import (
    SharedDense,
    Synthesizer,
    more_parameters,
    shared_dense_parameters,
    synthesizing,
)
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def added(sizes: Sizes, length: int = 512) -> int:
    return more_parameters(sizes, shared_dense_parameters(sizes, length), -1)


@modification("2102.11972", adds=added, most={"length": 100_000})
def synthesizer_dense_study(spec: Spec, *, length: int = 512) -> Spec:
    """`synthesizer_dense` as Narang et al. (2021) ran it: one table for all heads, no biases.

        scores_hij = (relu(x_i W_Q,h) P)[j],   P ∈ R^(d_head × length);   no keys

    Parameters: 3·d·heads·d_head + d_head·length in place of each self-attention's 4·d·heads·d_head.
    """
    return synthesizing(spec, Synthesizer, length, SharedDense)
