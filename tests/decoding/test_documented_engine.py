"""The programs of docs/decoding.md that talk to an engine, and that look inside, do what the page says."""

import re
from pathlib import Path

import pytest

import sixfold
from tests.support import runs

PAGE = Path(__file__).parents[2] / "docs" / "decoding.md"


def test_the_engine_is_talked_to_as_the_page_says(tmp_path, monkeypatch):
    section = PAGE.read_text(encoding="utf-8").split("## The engine")[1]
    (program,) = re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    monkeypatch.chdir(tmp_path)
    translator = sixfold.load(runs.translating(tmp_path / "runs" / "mine"), device="cpu")
    said = {}
    exec(program, said)
    slow, late = translator.translate(["a b c d e f g h i", "c b a"], terms=[[], ["A"]], beam_size=4)
    assert "A" in late.text
    assert said["answers"] == {said["slow"]: slow.text, said["late"]: late.text}
    assert str(said["unwanted"].error) == "it was cancelled"


def test_one_looks_inside_as_the_page_says(tmp_path, monkeypatch, capsys):
    section = PAGE.read_text(encoding="utf-8").split("## Looking inside")[1]
    programs = re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.DOTALL)
    monkeypatch.chdir(tmp_path)
    translator = sixfold.load(runs.translating(tmp_path / "runs" / "mine"), device="cpu")
    said = {}
    exec("\n".join(programs), said)
    plain, gated = said["plain"], said["gated"]
    assert (said["found"].text, said["without"].text) == (plain.text, gated.text)
    assert said["found"].score != said["without"].score
    assert said["looked"].score == pytest.approx(said["found"].score, abs=1e-4)
    assert translator.translate(["a b c"], beam_size=2)[0].text == plain.text
    out = capsys.readouterr().out.splitlines()
    candidates = [line.split() for line in out if line.endswith(("cut ", "ended ", "stopped ")) or "->" in line]
    assert len(candidates) == sum(len(step.candidates) for step in said["found"].trace.steps)
    assert [line.split()[1:] for line in out[-3:]] == [["a", "0", "1", "0"], ["b", "2", "3", "1"], ["c", "5", "6", "2"]]
