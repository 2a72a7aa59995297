"""Modules that a file of parts written for version 0.1 may import, and where their contents are now."""

from __future__ import annotations

_NOW_IN = {
    "sixfold.spec.assemble": "sixfold.spec.assemble",
    "sixfold.core.call": "sixfold.core.call (PAD, BOS, EOS: sixfold)",
    "sixfold.modifications._shared.convolution": "sixfold.modifications._shared.convolution",
    "sixfold.core.state": "sixfold.core.state",
    "sixfold.core.dropout": "sixfold.core.dropout",
    "sixfold.core.inputs": "sixfold.core.inputs",
    "sixfold.modifications._shared.experts": "sixfold.modifications._shared.experts",
    "sixfold.modifications._shared.factorized": "sixfold.modifications._shared.factorized",
    "sixfold.modifications._shared.adaptive_computation": "sixfold.modifications._shared.adaptive_computation",
    "sixfold.core.init": "sixfold.core.init",
    "sixfold.models": "sixfold (build, Batch, Losses), or sixfold.models.model",
    "sixfold.spec.registry": "sixfold (modification), or sixfold.spec.registry",
    "sixfold.spec": "sixfold (Spec, Place, Sizes), or sixfold.spec.spec",
    "sixfold.runs.model_files": "sixfold (save, load_model), or sixfold.runs.model_files",
    "sixfold.modifications._shared.synthesizer": "sixfold.modifications._shared.synthesizer",
    "sixfold.core.tap": "sixfold (Tap), or sixfold.core.tap",
    "sixfold.core.loss": "sixfold.core.loss",
    "sixfold.transformer": "sixfold.transformer, sixfold.core.masks (Sight) and sixfold.core.memory (Memory)",
}


def where_now(error: ImportError) -> str:
    """The advice for an import that failed because version 0.2 moved the module; empty if it did not."""
    now = _NOW_IN.get(error.name or "")
    return "" if now is None else f"; since version 0.2 its contents are in {now}"
