"""Texts and times that nobody should give: a plan and a model, or one sentence."""

import pytest

from sixfold.runs.run import Run

WORDS = ["the", "cat", "sees", "a", "small", "dog", "near", "the", "old", "house"]
TEXTS = {
    "three lines": [("one", "eins"), ("two", "zwei"), ("three", "drei")],
    "one line, repeated": [("the same line", "dieselbe Zeile")] * 80,
    "lines of 2,000 tokens": [(" ".join(WORDS * 200), " ".join(WORDS * 200)) for _ in range(8)],
    "source = target": [(f"{word} {other}", f"{word} {other}") for word in WORDS for other in WORDS],
}


@pytest.fixture(params=TEXTS)
def text(request, tmp_path):
    lines = [f"{source}\t{target}\n" for source, target in TEXTS[request.param]]
    (tmp_path / "text.tsv").write_text("".join(lines))
    return ["--data.train", str(tmp_path / "text.tsv"), "--training.device", "cpu"]


def test_a_plan_or_one_sentence(sixfold, text):
    code, out, err = sixfold("plan", *text, "--training.minutes", "0.01")
    assert code in (0, 2)
    assert ("model.d_model" in out) == (code == 0)
    assert "Traceback" not in err


def test_a_model_or_one_sentence_and_no_run(sixfold, text, tmp_path):
    code, _, err = sixfold("train", *text, "--training.minutes", "0.01", "--out", str(tmp_path / "run"))
    assert "Traceback" not in err
    if code:
        assert err.strip().splitlines()[-1].startswith("sixfold: ")
        assert not (tmp_path / "run").exists()
    else:
        assert (Run(tmp_path / "run").directory / "model.safetensors").is_file()


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "1e9", "ten"])
def test_a_time_that_is_none_is_named(sixfold, minutes, tmp_path):
    code, _, err = sixfold("train", "--training.minutes", minutes, "--out", str(tmp_path / "run"))
    assert code == 2
    assert "training.minutes" in err
    assert not (tmp_path / "run").exists()
