"""Factorised embedding, shared with the output."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sixfold.core.place import Sizes
from sixfold.modifications._shared.factorized import check_inner, factor_parameters, factors
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def added(sizes: Sizes, inner: int = 128) -> int:
    return factor_parameters(sizes, inner)


@modification("1909.11942", adds=added, most={"inner": 65_536})
def factorized_shared_embedding(spec: Spec, *, inner: int = 128) -> Spec:
    """Words are read and written through one narrow table and one matrix.

        x_t = √D · A[id_t] B        logits = (x Bᵀ) Aᵀ: down to `inner` first, then to the words

    Logits have rank `inner` at most. With separate vocabularies, the source has factors of its own.
    Parameters: inner · (V + d_model) instead of V · d_model.
    """
    check_inner("factorized_shared_embedding", inner)
    return replace(spec, embedding=partial(factors, inner=inner))
