"""The Evolved Transformer, as Narang et al. (2021) ran it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sixfold.core.place import Sizes
from sixfold.modifications import evolved
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def as_wide(spec: Spec) -> Spec:
    """The spec with heads of full width: 2H of them are twice as wide as the usual H."""
    return spec


def added(sizes: Sizes) -> int:
    return evolved.added(sizes) + sizes.decoder_layers * 4 * sizes.d_model * sizes.heads * sizes.d_head


@modification("2102.11972", adds=added)
def evolved_study(spec: Spec) -> Spec:
    """`evolved` as Narang et al. (2021) ran it: the 2·heads of a decoder cell's first attention have d_head each.

    The page of `evolved` shows the cells. Parameters: 4·d·heads·d_head more than `evolved` in each decoder cell.
    """
    wide = partial(evolved.decoder_cell, each=as_wide)
    return replace(spec, encoder_layer=evolved.encoder_cell, decoder_layer=wide)
