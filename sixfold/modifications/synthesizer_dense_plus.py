"""The dense Synthesizer, beside attention."""

from __future__ import annotations

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
    return more_parameters(sizes, dense_parameters(sizes, length), 0)


@modification("2005.00743", adds=added, most={"length": 100_000})
def synthesizer_dense_plus(spec: Spec, *, length: int = 512) -> Spec:
    """Attention, with the scores of `synthesizer_dense` added to its own.

        scores_hij = q_i · k_j / √K + (relu(x_i W₁_h + b₁) W₂_h + b₂)[j]

    Parameters: those of the scores in addition, d·heads·d_head + heads·((d_head + 1)·length + d_head) for each
    self-attention.
    """
    return synthesizing(spec, SynthesizerPlus, length, Dense)
