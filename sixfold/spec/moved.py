"""Modules that a file of parts written for version 0.1 may import, and where their contents are now."""

from __future__ import annotations

_NOW_IN = {
    "sixfold.assemble": "sixfold.spec.assemble",
    "sixfold.call": "sixfold.core.call (PAD, BOS, EOS: sixfold)",
    "sixfold.convolution": "sixfold.modifications._shared.convolution",
    "sixfold.decoding.cache": "sixfold.core.state",
    "sixfold.dropout": "sixfold.core.dropout",
    "sixfold.entry": "sixfold.core.inputs",
    "sixfold.experts": "sixfold.modifications._shared.experts",
    "sixfold.factors": "sixfold.modifications._shared.factorized",
    "sixfold.halting": "sixfold.modifications._shared.adaptive_computation",
    "sixfold.initial": "sixfold.core.init",
    "sixfold.models": "sixfold (build, Batch, Losses), or sixfold.models.model",
    "sixfold.registry": "sixfold (modification), or sixfold.spec.registry",
    "sixfold.spec": "sixfold (Spec, Place, Sizes), or sixfold.spec.spec",
    "sixfold.store": "sixfold (save, load_model), or sixfold.runs.model_files",
    "sixfold.synthesizer": "sixfold.modifications._shared.synthesizer",
    "sixfold.tap": "sixfold (Tap), or sixfold.core.tap",
    "sixfold.training.loss": "sixfold.core.loss",
    "sixfold.transformer": "sixfold.transformer, sixfold.core.masks (Sight) and sixfold.core.memory (Memory)",
}


def where_now(error: ImportError) -> str:
    """The advice for an import that failed because version 0.2 moved the module; empty if it did not."""
    now = _NOW_IN.get(error.name or "")
    return "" if now is None else f"; since version 0.2 its contents are in {now}"
