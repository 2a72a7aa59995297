"""Weighted Transformer, as Narang et al. (2021) ran it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sixfold.core.place import Sizes
from sixfold.modifications.weighted import (
    Branches,
    WeightedDecoderLayer,
    WeightedEncoderLayer,
    check_freeze,
    settle,
)
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Attention


class SharedBranches(Branches):
    """One feed-forward network, as wide as the plain one, for all branches."""

    @staticmethod
    def networks(sizes: Sizes) -> tuple[int, int]:
        return 1, sizes.d_ff


def added(sizes: Sizes, freeze: int = 20_000) -> int:
    d, layers = sizes.d_model, sizes.encoder_layers + sizes.decoder_layers
    plain, norm, mixing = 2 * d * sizes.d_ff + sizes.d_ff + d, 2 * d, 2 * sizes.heads
    return layers * (mixing - norm) + sizes.decoder_layers * (plain + mixing)


@modification("2102.11972", adds=added, most={"freeze": 1_000_000_000})
def weighted_study(spec: Spec, *, freeze: int = 20_000) -> Spec:
    """`weighted` as Narang et al. (2021) ran it: branches share one network, also in decoder self-attention.

        y = Σ_i α_i FFN(κ_i head_i W_O⁽ⁱ⁾)        one FFN of width d_ff in each attention

    κ and α learn as fast as the rest. Parameters: one feed-forward network more in each decoder layer.
    """
    check_freeze("weighted_study", freeze)
    branched = partial(SharedBranches, attention=Attention)
    return replace(
        spec,
        encoder_layer=partial(WeightedEncoderLayer, branches=SharedBranches),
        decoder_layer=partial(WeightedDecoderLayer, attention=branched, branches=SharedBranches),
        after_step=partial(settle, freeze=freeze),
    )
