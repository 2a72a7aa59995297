"""The program of docs/decoding.md that talks to an engine does what the page says."""

import re
from pathlib import Path

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
