"""What files of older formats say, in today's words. New files are never translated: an old word there is an error.

How a file is recognised as old:

    model.json     its `format` is sixfold-model-1
    config.yaml    run.json beside it has no `format`; where there is no run.json, model.json beside it is old

(Not model.json alone: it is written anew when an old run goes on, and config.yaml is not.)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sixfold.disk.reading import read_json

MODEL_1, MODEL_2 = "sixfold-model-1", "sixfold-model-2"
RUN_2 = "sixfold-run-2"  # of run.json and config.yaml; before, they named no format

# Modifications that had the option `study`: with it, each is now NAME_study, which lacks these options, unused then.
_STUDIED: dict[str, tuple[str, ...]] = {
    "dynamic_convolution": ("widths", "shared"),
    "evolved": (),
    "fixup": (),
    "funnel": (),
    "lightweight_convolution": ("widths", "shared"),
    "synthesizer_dense": (),
    "synthesizer_dense_plus": (),
    "synthesizer_dense_plus_alpha": (),
    "synthesizer_factorized": (),
    "universal": ("halting",),
    "weighted": (),
}


def is_old_config(config: Path) -> bool:
    """Whether the config.yaml of a run was written before runs named their format. An unknown format is an error."""
    about = _read(config.with_name("run.json"))
    if about is None:
        model = _read(config.with_name("model.json"))
        return model is not None and model.get("format") == MODEL_1
    found = about.get("format")
    if found not in (None, RUN_2):
        raise ValueError(
            f"{config.with_name('run.json')} has format {found!r}; this version of sixfold reads {RUN_2!r}"
        )
    return found is None


def _read(path: Path) -> dict[str, Any] | None:
    """A small JSON file; None if it is missing or damaged, which whoever needs it will say."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def modification(wish: Any) -> Any:
    """One entry of an old list of modifications: text such as "funnel:study=true", or {"funnel": {"study": true}}."""
    name, options = _split(wish)
    if name not in _STUDIED or "study" not in options:
        return wish
    if str(options.pop("study")).lower() != "true":
        return {name: options}
    return {f"{name}_study": {key: value for key, value in options.items() if key not in _STUDIED[name]}}


def _split(wish: Any) -> tuple[str, dict[str, Any]]:
    """Name and options; without options if it is anything else, which is for the registry to refuse."""
    if isinstance(wish, str):
        name, _, text = wish.partition(":")
        pairs = [pair.partition("=") for pair in text.split(",")]
        return name.strip(), {key.strip(): value.strip() for key, _, value in pairs}
    if isinstance(wish, Mapping) and len(wish) == 1:
        ((name, options),) = wish.items()
        return name, dict(options) if isinstance(options, Mapping) else {}
    return "", {}
