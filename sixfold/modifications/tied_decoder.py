"""One table for the decoder's input and output."""

from __future__ import annotations

from dataclasses import replace

from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Tables


def decoder(spec: Spec) -> Tables:
    own, shared = spec.embedding(spec, spec.place("encoder")), spec.embedding(spec, spec.place("decoder"))
    return Tables(source=own, target=shared, output=shared)


@modification("1608.05859", adds=lambda sizes: sizes.vocab * sizes.d_model)
def tied_decoder(spec: Spec) -> Spec:
    """The decoder reads and writes with one table; the encoder has its own.

        encoder input S   decoder input E   output E         (plain: E, E, E)

    The plain model does the same with separate vocabularies, and in a model of one stack.
    Parameters: V · d_model; none with separate vocabularies.
    """
    return replace(spec, tables=decoder)
