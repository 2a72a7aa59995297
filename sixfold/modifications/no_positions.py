"""No positions at all."""

from __future__ import annotations

from dataclasses import replace

from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Position


@modification(adds=lambda sizes: 0)
def no_positions(spec: Spec) -> Spec:
    """No position information is added anywhere.

    An encoder then reads a bag of words: permuting its input permutes its output. A decoder can still
    infer positions, because each token sees only those before it. Parameters: none.
    """
    return replace(spec, position=Position)
