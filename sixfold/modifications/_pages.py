"""A page for each modification, from its docstring: for the terminal, and as Markdown for the documentation.

`python -m sixfold.pages docs/modifications` writes them all.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sixfold.spec.registry import Modification, all_modifications


def page(m: Modification) -> str:
    """Everything there is to know of one modification, as Markdown that also reads well in a terminal."""
    facts = [f"Slots: {', '.join(m.slots)}."]
    if m.paper:
        facts.append(f"Paper: arXiv {m.paper}.")
    options = [f"- `{name}` = {_plain(o.default)} ({o.annotation})" for name, o in m.options.items()]
    lines = [f"# {m.name}", "", m.page, "", " ".join(facts)]
    return "\n".join([*lines, "", "Options:", "", *options] if options else lines) + "\n"


def _plain(default: object) -> str:
    return str(default).lower() if default is None or isinstance(default, bool) else str(default)


def index(modifications: list[Modification]) -> str:
    """A table of all."""
    rows = [
        f"| [{m.name}]({m.name}.md) | {', '.join(m.slots)} | {m.summary} | {m.paper or ''} |" for m in modifications
    ]
    head = ["# Modifications", "", "| name | slots | what it does | paper |", "|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def pages() -> dict[str, str]:
    """File name → text, for the documentation."""
    known = [m for m in all_modifications().values() if m.change.__module__.startswith("sixfold.modifications.")]
    return {"README.md": index(known), **{f"{m.name}.md": page(m) for m in known}}


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
