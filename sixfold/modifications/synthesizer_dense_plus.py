"""The dense Synthesizer, beside attention."""

from __future__ import annotations

from sixfold.core.place import Sizes
from sixfold.modifications._shared.synthesizer import (
    Dense,
    SharedDense,
    SynthesizerPlus,
    dense_parameters,
    more_parameters,
    synthesizing,
)
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def added(sizes: Sizes, length: int = 512, study: bool = False) -> int:
    return more_parameters(sizes, dense_parameters(sizes, length, study), 0)


@modification("2005.00743", adds=added)
def synthesizer_dense_plus(spec: Spec, *, length: int = 512, study: bool = False) -> Spec:
    """Attention, with the scores of `synthesizer_dense` added to its own.

        scores_hij = q_i · k_j / √K + (relu(x_i W₁_h + b₁) W₂_h + b₂)[j];   study: q_i · k_j / √K + (relu(q_i) P)[j]

    Parameters: what the scores have, in addition: d·heads·d_head + heads·((d_head + 1)·length + d_head)
    for each self-attention; `study`: d_head·length.
    """
    return synthesizing(spec, SynthesizerPlus, length, SharedDense if study else Dense)
