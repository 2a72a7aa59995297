"""The labels of a run that classifies: `labels.json`, the name of each class in order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sixfold.disk.atomic import write_text
from sixfold.disk.reading import read_json

FILE = "labels.json"


def save_labels(labels: Sequence[str], directory: Path) -> None:
    write_text(directory / FILE, json.dumps(list(labels), indent=2, ensure_ascii=False) + "\n")


def load_labels(directory: Path) -> tuple[str, ...]:
    """The labels of a run or model directory; none if it has none."""
    path = directory / FILE
    if not path.exists():
        return ()
    try:
        found = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(found, list) or not all(isinstance(label, str) and label for label in found):
        raise ValueError(f"{path} must hold the names of the classes, a list of texts")
    if len(set(found)) < len(found):
        raise ValueError(f"{path} names a class twice")
    return tuple(found)
