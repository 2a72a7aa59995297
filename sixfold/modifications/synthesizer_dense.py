"""The dense Synthesizer."""

from __future__ import annotations

from sixfold.core.place import Sizes
from sixfold.modifications._shared.synthesizer import (
    Dense,
    Synthesizer,
    dense_parameters,
    more_parameters,
    synthesizing,
)
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def added(sizes: Sizes, length: int = 512) -> int:
    return more_parameters(sizes, dense_parameters(sizes, length), -2)


@modification("2005.00743", adds=added, most={"length": 100_000})
def synthesizer_dense(spec: Spec, *, length: int = 512) -> Spec:
    """Each token computes from itself alone how much it looks at each position.

        scores_hij = (relu(x_i W₁_h + b₁) W₂_h + b₂)[j],   W₂_h ∈ R^(d_head × length);   no keys

    Masks, a position's bias, values and cross-attention stay. Row and column are positions in the text,
    so a text longer than `length` is an error.
    Parameters: 3·d·heads·d_head + heads·((d_head + 1)·length + d_head) in place of each self-attention's
    4·d·heads·d_head.
    """
    return synthesizing(spec, Synthesizer, length, Dense)
