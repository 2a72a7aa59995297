"""The random Synthesizer, beside attention."""

from __future__ import annotations

from sixfold.core.place import Sizes
from sixfold.modifications._shared.synthesizer import Random, SynthesizerPlus, more_parameters, synthesizing
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def added(sizes: Sizes, length: int = 512) -> int:
    return more_parameters(sizes, sizes.heads * length**2, 0)


@modification("2005.00743", adds=added, most={"length": 100_000})
def synthesizer_random_plus(spec: Spec, *, length: int = 512) -> Spec:
    """Attention, with a learned number for each pair of positions added to its scores.

        scores_hij = q_i · k_j / √K + R_h[i, j]

    Parameters: heads·length² more for each self-attention.
    """
    return synthesizing(spec, SynthesizerPlus, length, Random)
