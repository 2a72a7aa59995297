"""The labels of a run that classifies: `labels.json`, the name of each class in order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sixfold.core.quote import quoted
from sixfold.disk.atomic import write_text
from sixfold.disk.hashes import is_intact, with_hash
from sixfold.disk.reading import read_json

LABELS = "labels.json"
FORMAT = "sixfold-labels-1"


def checked_labels(labels: Any) -> list[str]:
    """Check the labels of a model: a list of at least two texts, all different and none empty."""
    if not isinstance(labels, Sequence) or isinstance(labels, str):
        raise ValueError(f"labels must be a list of texts, got {quoted(labels)}")
    if not all(isinstance(label, str) and label for label in labels):
        raise ValueError(f"each label must be a text that is not empty, got {quoted(labels)}")
    if len(labels) < 2 or len({*labels}) != len(labels):
        raise ValueError(f"there must be at least two labels, all different, got {quoted(labels)}")
    return [*labels]


def write_labels(directory: Path, labels: Sequence[str]) -> None:
    """Write the labels of a model in order, atomically."""
    path = directory / LABELS
    record = with_hash({"format": FORMAT, "labels": checked_labels(labels)})
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def read_labels(directory: Path) -> list[str]:
    """The labels that `write_labels` wrote."""
    path = directory / LABELS
    try:
        record = read_json(path)
        found = record.get("format") if isinstance(record, Mapping) else None
        if found != FORMAT:
            raise ValueError(f"it has format {quoted(found)}; this version of sixfold reads {FORMAT!r}")
        if not is_intact(record):
            raise ValueError("it has changed since it was written")
        return checked_labels(record.get("labels"))
    except FileNotFoundError:
        raise ValueError(f"there is no {path}, which holds the names of the labels") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} can't be read, or is damaged: {error}") from None
