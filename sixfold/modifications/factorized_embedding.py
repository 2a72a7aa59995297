"""Factorised embedding of the inputs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sixfold.core.place import Sizes
from sixfold.modifications._shared.factorized import check_inner, factor_parameters, factors
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Tables, TokenEmbedding


def full_output(spec: Spec) -> Tables:
    """Inputs share the spec's embedding (one per vocabulary); the output is a plain table."""
    target = spec.embedding(spec, spec.place("decoder"))
    source = target if spec.sizes.joint else spec.embedding(spec, spec.place("encoder"))
    return Tables(source=source, target=target, output=TokenEmbedding(spec, spec.place("decoder")))


def added(sizes: Sizes, inner: int = 128) -> int:
    return factor_parameters(sizes, inner) + sizes.vocabulary("decoder") * sizes.d_model


@modification("1909.11942", adds=added, most={"inner": 65_536})
def factorized_embedding(spec: Spec, *, inner: int = 128) -> Spec:
    """Words are read through a narrow table and a matrix; the output has a full table of its own.

        x_t = √D · A[id_t] B        A ∈ R^(V × inner), B ∈ R^(inner × D)        logits = x Oᵀ, O ∈ R^(V × D)

    Encoder and decoder read through the same A and B; with separate vocabularies, each through its own.
    There is neither a bias nor a non-linearity between the factors.
    Parameters: inner · (V + d_model) for the inputs, beside V · d_model for the output.
    """
    check_inner("factorized_embedding", inner)
    return replace(spec, embedding=partial(factors, inner=inner), tables=full_output)
