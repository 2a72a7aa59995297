"""ReZero with RMS norm."""

from __future__ import annotations

from dataclasses import replace

from sixfold.modifications.rezero import alphas, norms
from sixfold.modifications.rezero_layer_norm import NormedReZero
from sixfold.modifications.rms_norm import RMSNorm
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


@modification("2003.04887", adds=lambda sizes: alphas(sizes) - norms(sizes) * sizes.d_model)
def rezero_rms_norm(spec: Spec) -> Spec:
    """ReZero with RMS norms, before each sub-layer and at the end.

        x ← x + α · Drop(Sublayer(RMSNorm(x))),   α starts at 0

    Parameters: 1 for each sub-layer; d_model fewer for each norm.
    """
    return replace(spec, residual=NormedReZero, norm=RMSNorm)
