"""Files of older formats, translated to today's names. New files are never translated: an old name there is an error.

How a file is recognised as old:

    model.json     its `format` is sixfold-model-1
    config.yaml    run.json beside it has no `format`; without a run.json, model.json beside it is old

(A new model.json beside config.yaml proves nothing: resuming an old run rewrites model.json, but not config.yaml.)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sixfold.disk.reading import read_json

MODEL_1, MODEL_2 = "sixfold-model-1", "sixfold-model-2"
RUN_2 = "sixfold-run-2"  # of run.json and config.yaml; older ones name no format

# Modifications that had the option `study`. NAME:study=true is now NAME_study, which lacks the options listed here:
# with study=true they had no effect.
_HAD_STUDY: dict[str, tuple[str, ...]] = {
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


_RENAMED = {("training", "warmup_steps"): "warmup"}  # a section's old key → its new one


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
    """A small JSON file; None if it is missing or damaged: the code that needs the file reports that."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def modification(entry: Any) -> Any:
    """Today's form of an entry in an old list of modifications: "funnel:study=true", or {"funnel": {"study": true}}."""
    name, options = _split(entry)
    if name not in _HAD_STUDY or "study" not in options:
        return entry
    if str(options.pop("study")).lower() != "true":
        return {name: options}
    return {f"{name}_study": {key: value for key, value in options.items() if key not in _HAD_STUDY[name]}}


def renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a run's configuration, with today's names of keys, and old values of keys that were added."""
    tree = dict(config)
    for (section, old), new in _RENAMED.items():
        values = tree.get(section)
        if isinstance(values, Mapping) and old in values:
            tree[section] = {new if key == old else key: value for key, value in values.items()}
    data = tree.get("data")
    if isinstance(data, Mapping) and "held_out" not in data:
        tree["data"] = {**data, "held_out": 0}  # before this key, no validation text was held out
    return tree


def _split(entry: Any) -> tuple[str, dict[str, Any]]:
    """The name and the options of an entry. For an invalid entry, the name is ""; the registry will refuse it."""
    if isinstance(entry, str):
        name, _, text = entry.partition(":")
        pairs = [pair.partition("=") for pair in text.split(",")]
        return name.strip(), {key.strip(): value.strip() for key, _, value in pairs}
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, options),) = entry.items()
        return name, dict(options) if isinstance(options, Mapping) else {}
    return "", {}
