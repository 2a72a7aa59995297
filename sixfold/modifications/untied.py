"""A table for each role."""

from __future__ import annotations

from dataclasses import replace

from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Tables


def none(spec: Spec) -> Tables:
    source, target, output = (spec.embedding(spec, spec.place(stack)) for stack in ("encoder", "decoder", "decoder"))
    return Tables(source=source, target=target, output=output)


@modification("2102.11972", adds=lambda sizes: (2 * sizes.vocab if sizes.joint else sizes.target_vocab) * sizes.d_model)
def untied(spec: Spec) -> Spec:
    """Encoder input, decoder input and output have a table each.

        encoder input S   decoder input E   output O         (plain: E, E, E)

    With separate vocabularies too, where the plain model shares E with the output.
    Parameters: 2 · V · d_model; with separate vocabularies, target words · d_model.
    """
    return replace(spec, tables=none)
