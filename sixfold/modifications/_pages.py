"""Makes a page for each modification and baseline from its docstring, in Markdown: for `sixfold list NAME` and docs/.

`python -m sixfold.modifications._pages docs` (`make docs`) writes all pages, and _index.json, which `sixfold list`
reads.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sixfold.modifications._index import FILE, GROUPS, Entry, as_text
from sixfold.spec.registry import Modification, all_modifications


def page(m: Modification) -> str:
    """The page of one modification, as Markdown that also reads well in a terminal."""
    facts = [f"Slots: {', '.join(m.slots)}."]
    if m.paper:
        facts.append(f"Paper: arXiv {m.paper}.")
    options = [f"- `{name}` = {_option_text(o.default)} ({o.annotation})" for name, o in m.options.items()]
    lines = [f"# {m.name}", "", m.page, "", " ".join(facts)]
    return "\n".join([*lines, "", "Options:", "", *options] if options else lines) + "\n"


def _option_text(default: object) -> str:
    return str(default).lower() if default is None or isinstance(default, bool) else str(default)


def index(group: str, modifications: list[Modification]) -> str:
    """A table of all modifications of a group."""
    rows = [
        f"| [{m.name}]({m.name}.md) | {', '.join(m.slots)} | {m.summary} | {m.paper or ''} |" for m in modifications
    ]
    study = "Papers are arXiv numbers. Narang et al. (2021), who compared many of these modifications, is 2102.11972."
    table = ["| name | slots | what it does | paper |", "|---|---|---|---|"]
    head = [f"# {group.capitalize()}", "", *([study, ""] if group == "modifications" else []), *table]
    return "\n".join([*head, *rows]) + "\n"


def pages() -> dict[str, str]:
    """Path → text of all pages of the documentation; each group has a folder."""
    groups = {group: [m for m in _own() if m.group == group] for group in GROUPS}
    indices = {f"{group}/README.md": index(group, known) for group, known in groups.items()}
    return indices | {f"{group}/{m.name}.md": page(m) for group, known in groups.items() for m in known}


def _own() -> list[Modification]:
    """sixfold's own modifications, without those of imported files."""
    return [m for m in all_modifications().values() if m.own]


def entry(m: Modification) -> Entry:
    """The index entry of a modification."""
    options = {name: _as_json(option.default) for name, option in m.options.items()}
    return Entry(m.name, m.group, list(m.slots), m.summary, m.paper, options, page(m))


def _as_json(default: object) -> object:
    return list(default) if isinstance(default, tuple) else default


def registered_entries() -> dict[str, Entry]:
    """The entries of all registered modifications."""
    return {name: entry(m) for name, m in all_modifications().items()}


def own_entries() -> dict[str, Entry]:
    """The entries of sixfold's own modifications."""
    return {m.name: entry(m) for m in _own()}


def write(folder: Path) -> None:
    FILE.write_text(as_text(own_entries()), encoding="utf-8")
    for path, text in pages().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
