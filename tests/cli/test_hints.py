"""Likely slips on the command line, and the hint that each gets."""

from pathlib import Path

import pytest

from tests.support import runs


@pytest.fixture
def place(sixfold, tmp_path):
    runs.translating(tmp_path / "run", **{"data.train": "a.tsv", "data.valid": "a.tsv"})
    runs.writing(tmp_path / "lm", **{"data.train": "text", "data.valid": "text"})
    Path("text").write_text("some text\n")
    Path("a.tsv").write_text("\ta\n")
    return sixfold


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("train text", "if it is text to train on, give --data.train text"),
        ("train a.tsv", "if it is text to train on, give --data.train a.tsv"),
        ("train run", "run is a directory, not a recipe; if it is a run, --resume run continues it"),
        ("train --data.train text", "one text, but this task needs pairs"),
        ("train --data.train text", "`sixfold train lm`"),
        ("train lm my.txt", "takes [recipe], but 'my.txt' was given, too; give training text as --data.train my.txt"),
        ("train pronounce --training.steps 4 a b", "'a' was given, too"),
        ("translate run a b", "takes RUN [FILE], but 'b' was given, too; give one FILE at a time"),
        ("translate run hello", "there is no file 'hello'; give a text as: echo hello | sixfold translate run"),
        ("generate lm hello", "there is no file 'hello'; give a prompt as --prompt hello"),
        ("generate lm once upon", "'upon' was given, too; give a prompt as --prompt TEXT, in quotes"),
        ("train --modify rotary,swiglu", "for several, give --modify once for each"),
        ("translate text", "text is a file; give the directory of a run"),
        ("score text text", "text is a file; give the directory of a run"),
        ("score --hyp text", "--ref FILE"),
        ("score run", "run has no data.test to score: give --source-file and --ref, or --part valid"),
        ("score lm", "or --part valid"),
    ],
)
def test_a_slip_gets_a_line_that_says_what_to_do(place, typed, words):
    code, out, err = place(*typed.split())
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert words in err
