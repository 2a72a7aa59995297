"""README.md and docs/: the commands that they show can be typed, every verb has its row, and links lead somewhere."""

import importlib
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

app = importlib.import_module("sixfold.cli.app")
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").rglob("*.md"))
SHOWN = re.compile(r"^    (?:\$ )?(?:.*\| )?(?:torchrun .* -m )?sixfold (.*)$", re.MULTILINE)
NAMED = re.compile(r"`sixfold ([a-z]+)[^`]*`")
STANDS_FOR_MORE = {"…", "..."}


def words_of(line):
    """The words of a command, without what the shell keeps for itself: comments, and files to read and write."""
    words = [word.strip("[]") for word in shlex.split(line, comments=True)]
    ends = [words.index(sign) for sign in "<>" if sign in words]
    return [word for word in words[: min(ends, default=None)] if word not in STANDS_FOR_MORE]


@pytest.fixture(name="verbs", scope="module")
def _verbs():
    app.load_verbs()
    return get_command(app.app)


def parse(group, words):
    """Raise an error unless the verb exists and takes these arguments."""
    context = group.make_context("sixfold", words)
    name, verb, rest = group.resolve_command(context, words)
    if hasattr(verb, "resolve_command"):
        parse(verb, rest)
    elif rest != ["--help"]:
        verb.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_shown_command_can_be_typed(verbs, page):
    for line in SHOWN.findall(re.sub(r"\\\n *", "", page.read_text(encoding="utf-8"))):
        parse(verbs, words_of(line))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_verb_exists(page):
    assert set(NAMED.findall(page.read_text(encoding="utf-8"))) <= {*app.VERBS}


def test_the_readme_has_a_row_for_every_verb():
    rows = re.findall(r"^\| `sixfold ([a-z]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*app.VERBS} <= {*rows}


def anchors(page):
    """The names under which GitHub links to the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        target = (page.parent / file) if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
