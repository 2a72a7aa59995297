"""docs/your-own-model.md, command by command, in order, on a text of few lines and with runs of a second."""

import io
import itertools
import re
import sys
from pathlib import Path

import pytest

from sixfold.text import libreoffice
from tests.support import pages

PAGE = "your-own-model.md"
ONE_SECOND = "0.02"  # minutes


def write_corpus(source, target, out, source_deb, target_deb, tell, *, overwrite):
    """A text of 36 lines, in place of LibreOffice's help, which would have to be fetched."""
    tell(f"fetching libreoffice-help-{source} and libreoffice-help-{target}")
    out.mkdir()
    pairs = list(itertools.product(("red", "old", "new"), ("house", "tree", "dog", "file"), ("here", "there", "now")))
    german = {"red": "rotes", "old": "altes", "new": "neues", "house": "Haus", "tree": "Holz", "dog": "Tier"}
    german |= {"file": "Papier", "here": "hier", "there": "dort", "now": "jetzt"}
    for part, chosen in (("train", pairs[8:]), ("valid", pairs[:4]), ("test", pairs[4:8])):
        (out / f"{part}.{source}").write_text("".join(f"{' '.join(words)}\n" for words in chosen))
        (out / f"{part}.{target}").write_text("".join(f"{' '.join(map(german.get, words))}\n" for words in chosen))
    return libreoffice.Summary(source, target, {}, 1, 36, {}, {"train": 28, "valid": 4, "test": 4})


def begins(lines):
    """The words in small letters with which lines begin: names of rows and kinds of messages, but no translations."""
    return {found[1] for line in lines if (found := re.match(r"\s*([a-z][a-z_.,:-]{2,})(?=\s)", f"{line} "))}


def quickly(words):
    return [ONE_SECOND if before == "--training.minutes" else word for before, word in itertools.pairwise(["", *words])]


@pytest.fixture(name="tried")
def _tried(sixfold, monkeypatch, tmp_path):
    """Run a command of the page. → its output and messages, as lines"""
    monkeypatch.setattr(libreoffice, "prepare", write_corpus)
    for text in pages.fenced(PAGE, "yaml"):
        (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)

    def run(command):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(command.typed.encode())))
        code, out, err = sixfold(*quickly(command.words))
        assert code == 0, err
        return [*out.splitlines(), *err.splitlines()]

    return run


def test_the_page_runs_as_written_and_prints_what_it_shows(tried, capsys):
    commands = list(pages.commands(PAGE))
    assert len(commands) > 10
    for command in commands:
        printed = tried(command)
        assert not begins(command.shown) - begins(printed), f"sixfold {' '.join(command.words)}"
    assert Path("curves.png").stat().st_size > 1000
    assert len(Path("test.de").read_text().splitlines()) == 4
    (program,) = pages.programs(PAGE)
    exec(program.text, {})
    assert len(capsys.readouterr().out.splitlines()) == 1
