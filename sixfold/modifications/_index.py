"""The index of modifications and baselines that `sixfold list` reads without importing torch. `make docs` writes it.

The registry is authoritative, and a test compares the two. If a module was added or removed since the index was
written, the index is ignored and the registry is used, which imports torch.
"""

from __future__ import annotations

import json
import pkgutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("_index.json")
GROUPS = ("modifications", "baselines")  # the packages whose files register by `modification`


@dataclass(frozen=True)
class Entry:
    """The facts about one modification."""

    name: str
    group: str  # one of GROUPS
    slots: list[str]
    summary: str
    paper: str | None
    options: dict[str, Any]  # with their defaults
    page: str


def entries() -> dict[str, Entry] | None:
    """All modifications of sixfold by name; None if the index does not match the installed modules."""
    index: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    if index.get("modules") != _modules():
        return None
    return {each["name"]: Entry(**each) for each in index["entries"]}


def as_text(known: dict[str, Entry]) -> str:
    """The content of the index file."""
    listed = {"modules": _modules(), "entries": [asdict(entry) for entry in known.values()]}
    return json.dumps(listed, indent=1, ensure_ascii=False) + "\n"


def _modules() -> list[str]:
    folders = {group: [str(FILE.parents[1] / group)] for group in GROUPS}
    found = [(group, module.name) for group in GROUPS for module in pkgutil.iter_modules(folders[group])]
    return sorted(f"{group}.{name}" for group, name in found if not name.startswith("_"))
