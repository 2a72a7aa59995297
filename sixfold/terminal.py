"""Output for a terminal: text without control characters, and tables without frames."""

from __future__ import annotations

import sys
import unicodedata
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def printable(text: str) -> str:
    """The text with control characters as escapes, so that a user's text can't control the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def shown(text: str) -> str:
    """The text with control characters and changes of writing direction as escapes."""
    return "".join(c.encode("unicode_escape").decode() if _controls_terminal(c) else c for c in text)


def _controls_terminal(character: str) -> bool:
    turns = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    return turns or (character != "\n" and unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"))


def console(file: IO[str] | None = None) -> Console:
    """A console as wide as the terminal; in a pipe, 200 columns wide, so that tables are not cut."""
    width = None if (file or sys.stdout).isatty() else 200
    return Console(file=file, markup=False, highlight=False, emoji=False, width=width)


def table(*columns: str, right: tuple[int, ...] = ()) -> Table:
    made = Table(box=None, pad_edge=False)
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i in right else "left", no_wrap=i == 0)
    return made


def facts(*named: tuple[str, Any]) -> Table:
    """Two columns, name and value. Values that are None are left out."""
    made = Table.grid(padding=(0, 2))
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in named:
        if value is not None:
            made.add_row(Text(name), Text(printable(str(value))))
    return made
