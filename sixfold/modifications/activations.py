"""Other activations in the feed-forward layer: φ in φ(x W₁ + b₁) W₂ + b₂."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F

from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


@modification("1606.08415", adds=lambda sizes, form="erf": 0)
def gelu(spec: Spec, *, form: Literal["erf", "tanh"] = "erf") -> Spec:
    """GELU in the feed-forward: h times the probability that a standard normal variable is below h.

        φ(h) = h Φ(h) = ½ h (1 + erf(h / √2))
        form = tanh:    ½ h (1 + tanh(√(2/π) (h + 0.044715 h³)))

    The form `tanh`, which T5 and Narang et al. (2021) use, is an approximation with an error of up to 5e-4, so
    weights trained with one form give other outputs with the other form. Parameters: none.
    """
    return replace(spec, activation=partial(F.gelu, approximate="none" if form == "erf" else form))


@modification("1710.05941", adds=lambda sizes: 0)
def swish(spec: Spec) -> Spec:
    """Swish in the feed-forward: smooth, and not monotonic.

        φ(h) = h σ(h)

    The paper's slope β is fixed at 1; the function is then also called SiLU. Parameters: none.
    """
    return replace(spec, activation=F.silu)


@modification("1511.07289", adds=lambda sizes: 0)
def elu(spec: Spec) -> Spec:
    """ELU in the feed-forward: below zero it approaches −1 instead of being 0.

        φ(h) = h  where h > 0,  else  eʰ − 1

    Parameters: none.
    """
    return replace(spec, activation=F.elu)


@modification("1706.02515", adds=lambda sizes: 0)
def selu(spec: Spec) -> Spec:
    """SELU in the feed-forward: an ELU scaled so that it keeps mean 0 and variance 1.

        φ(h) = λ h  where h > 0,  else  λ α (eʰ − 1);   λ = 1.0507009874,  α = 1.6732632423

    In the paper it makes norms unnecessary. Here, as in Narang et al. (2021), it only replaces relu: norms,
    initialisation and dropout are unchanged. Parameters: none.
    """
    return replace(spec, activation=F.selu)


@modification(adds=lambda sizes: 0)
def sigmoid(spec: Spec) -> Spec:
    """The logistic function in the feed-forward: always between 0 and 1.

        φ(h) = 1 / (1 + e⁻ʰ)

    Parameters: none.
    """
    return replace(spec, activation=torch.sigmoid)


@modification(adds=lambda sizes: 0)
def softplus(spec: Spec) -> Spec:
    """Softplus in the feed-forward: a relu without the corner, always positive.

        φ(h) = ln(1 + eʰ)

    Parameters: none.
    """
    # Above the threshold, PyTorch returns h. Its default of 20 would give a visible error in float64.
    return replace(spec, activation=partial(F.softplus, threshold=40))
