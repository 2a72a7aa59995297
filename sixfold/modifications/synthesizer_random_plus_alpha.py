"""The random Synthesizer, mixed with attention."""

from __future__ import annotations

from functools import partial

from sixfold.core.place import Sizes
from sixfold.modifications._shared.synthesizer import Random, SynthesizerPlus, more_parameters, synthesizing
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def added(sizes: Sizes, length: int = 512) -> int:
    return more_parameters(sizes, 1 + sizes.heads * length**2, 0)


@modification("2005.00743", adds=added, most={"length": 100_000})
def synthesizer_random_plus_alpha(spec: Spec, *, length: int = 512) -> Spec:
    """Attention's own scores and learned numbers for pairs of positions, mixed by a learned number in each layer.

        scores_hij = (1 − a) q_i · k_j / √K + a R_h[i, j],   a = σ(α), α starts at 0

    A position's bias is added unmixed. Parameters: heads·length² + 1 more for each self-attention.
    """
    return synthesizing(spec, partial(SynthesizerPlus, alpha=True), length, Random)
