"""The programs and commands of a page of docs/, each with what the page shows of its output."""

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
_FENCES = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^    .*\n)+", re.MULTILINE)


class Program(NamedTuple):
    text: str
    shown: str  # the next block of the kind `text`, before another program; empty if there is none


class Command(NamedTuple):
    """`$ echo TEXT | sixfold …`, and the lines below it."""

    words: list[str]  # after `sixfold`
    typed: str  # on standard input
    shown: list[str]


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def fenced(page: str, kind: str) -> list[str]:
    """The blocks of one kind, such as yaml."""
    return [text for each, text in _FENCES.findall(read(page)) if each == kind]


def programs(page: str) -> list[Program]:
    found: list[Program] = []
    for kind, text in _FENCES.findall(read(page)):
        if kind == "python":
            found.append(Program(text, ""))
        elif kind == "text":
            found[-1] = found[-1]._replace(shown=text)
    return found


def commands(page: str) -> Iterator[Command]:
    """Those that are shown as `    $ sixfold …`, in order."""
    for block in _INDENTED.findall(_FENCES.sub("", read(page))):
        for part in re.split(r"^\$ ", textwrap.dedent(block), flags=re.MULTILINE)[1:]:
            line, *shown = part.splitlines()
            typed, words = "", shlex.split(line, comments=True)
            if words[0] == "echo":
                typed, words = f"{words[1]}\n", words[words.index("|") + 1 :]
            assert words[0] == "sixfold", line
            yield Command(words[1:], typed, shown)
