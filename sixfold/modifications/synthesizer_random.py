"""The random Synthesizer."""

from __future__ import annotations

from sixfold.core.place import Sizes
from sixfold.modifications._shared.synthesizer import Random, Synthesizer, more_parameters, synthesizing
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def added(sizes: Sizes, length: int = 512) -> int:
    return more_parameters(sizes, sizes.heads * length**2, -2)


@modification("2005.00743", adds=added, most={"length": 100_000})
def synthesizer_random(spec: Spec, *, length: int = 512) -> Spec:
    """Attention weights are learned numbers, the same for every text.

        scores_hij = R_h[i, j],   R_h ∈ R^(length × length);   no queries, no keys

    Not divided by √K. Row and column are positions in the text, so a text longer than `length` is an error.
    Parameters: 2·d·heads·d_head + heads·length² in place of each self-attention's 4·d·heads·d_head.
    """
    return synthesizing(spec, Synthesizer, length, Random)
