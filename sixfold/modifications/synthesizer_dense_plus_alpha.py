"""The dense Synthesizer, mixed with attention."""

from __future__ import annotations

from functools import partial

from sixfold.core.place import Sizes
from sixfold.modifications._shared.synthesizer import (
    Dense,
    SynthesizerPlus,
    dense_parameters,
    more_parameters,
    synthesizing,
)
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def added(sizes: Sizes, length: int = 512) -> int:
    return more_parameters(sizes, 1 + dense_parameters(sizes, length), 0)


@modification("2005.00743", adds=added, most={"length": 100_000})
def synthesizer_dense_plus_alpha(spec: Spec, *, length: int = 512) -> Spec:
    """Attention's own scores and those of `synthesizer_dense`, mixed by a learned number in each layer.

        scores = (1 − a) q · k / √K + a · dense,   a = σ(α), α starts at 0

    A position's bias is added unmixed. Parameters: one more than `synthesizer_dense_plus` in each layer.
    """
    return synthesizing(spec, partial(SynthesizerPlus, alpha=True), length, Dense)
