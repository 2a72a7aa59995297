"""The dense Synthesizer mixed with attention, as Narang et al. (2021) ran it."""

from __future__ import annotations

from functools import partial

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
    return more_parameters(sizes, 1 + shared_dense_parameters(sizes, length), 0)


@modification("2102.11972", adds=added, most={"length": 100_000})
def synthesizer_dense_plus_alpha_study(spec: Spec, *, length: int = 512) -> Spec:
    """`synthesizer_dense_plus_alpha` as Narang et al. (2021) ran it: one table for all heads, read by the queries.

        scores = (1 − a) q · k / √K + a · relu(q) P,   a = σ(α), α starts at 0

    Parameters: one more than `synthesizer_dense_plus_study` in each layer.
    """
    return synthesizing(spec, partial(SynthesizerPlus, alpha=True), length, SharedDense)
