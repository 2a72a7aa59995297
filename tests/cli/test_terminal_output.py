"""What `translate` shows on a terminal."""

import sys
from pathlib import Path

from sixfold.cli.lines import Output
from tests.support import runs


def test_control_characters_of_texts_are_escaped_and_tabs_between_them_are_not(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    Output().write("1", "-0.5", "a\tb\x1b[31m")
    assert capsys.readouterr().out == "1\t-0.5\ta\\tb\\x1b[31m\n"


def test_a_file_has_the_texts_as_they_are(tmp_path):
    with Output(tmp_path / "out") as output:
        output.write("1", "a\tb\x1b")
    assert (tmp_path / "out").read_bytes() == b"1\ta\tb\x1b\n"


def test_n_best_has_tabs_between_number_score_and_text(sixfold, monkeypatch, tmp_path):
    run = runs.translating(tmp_path / "run")
    Path("in").write_text("a b c\n")
    asked = ("translate", run, "in", "--beam_size", "2", "--n_best", "2", "--device", "cpu")
    plain = sixfold(*asked)[1]
    assert [len(line.split("\t")) for line in plain.splitlines()] == [3, 3]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert sixfold(*asked)[1] == plain
