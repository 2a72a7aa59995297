"""One table for both inputs."""

from __future__ import annotations

from dataclasses import replace

from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Tables


def inputs(spec: Spec) -> Tables:
    read, written = (spec.embedding(spec, spec.place("decoder")) for _ in range(2))
    return Tables(source=read, target=read, output=written)


@modification("2102.11972", adds=lambda sizes: sizes.vocab * sizes.d_model)
def tied_inputs(spec: Spec) -> Spec:
    """Encoder and decoder read with one table; the output has its own.

        encoder input E   decoder input E   output O         (plain: E, E, E)

    It needs a joint vocabulary: separate vocabularies can't share a table.
    A model of one stack reads with E and writes with O. Parameters: V · d_model.
    """
    if not spec.sizes.joint:
        raise ValueError(
            f"tied_inputs shares a table between source and target, but they have separate vocabularies of "
            f"{spec.sizes.source_vocab} and {spec.sizes.target_vocab} words; give vocab, or choose untied"
        )
    return replace(spec, tables=inputs)
