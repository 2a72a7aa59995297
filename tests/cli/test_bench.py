"""The verb: files, choices, and mistakes in one sentence."""

import json

import pytest

from sixfold.bench import report, subject
from tests.support.runs import translating
from tests.support.subjects import SMALL

SETTINGS = [word for key, value in SMALL.items() for word in (f"--{key}", value)]
QUICK = [
    "--rounds",
    1,
    "--seconds",
    0.1,
    "--threads",
    1,
    "--peers",
    "none",
    "--sentences",
    4,
    "--beams",
    1,
    "--steps",
    1,
]


def test_a_recipe_with_other_sizes(sixfold, tmp_path):
    code, out, err = sixfold(
        "bench", "transformer-base", *SETTINGS, *QUICK, "--only", "training,decoding", "--json", "x.json"
    )
    assert code == 0, err
    found = json.loads((tmp_path / "x.json").read_text())
    assert found["format"] == report.FORMAT
    assert list(found["sections"]) == ["training", "decoding"]
    assert found["subject"]["sizes"]["d_model"] == 16
    assert found["subject"]["weights"] == "random"
    assert found["wishes"]["beams"] == [1]
    assert {"cpu", "load at the start", "torch", "command"} <= found["machine"].keys()
    assert "target tokens/s" in out
    assert "FusedStep" in out
    assert "random words" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json"]  # nothing else is left


def test_a_run_is_only_read(sixfold, tmp_path):
    run = translating(tmp_path / "run")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    text = tmp_path / "in.txt"
    text.write_text("a b c\n\nd e f\n")
    code, out, err = sixfold("bench", run, *QUICK, "--only", "decoding", "--file", text, "--json", "x.json")
    assert code == 0, err
    assert "2 of 2 lines of" in out
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert json.loads((tmp_path / "x.json").read_text())["subject"]["weights"] == "trained"


def test_what_does_not_apply_is_said(sixfold):
    code, out, err = sixfold("bench", "lm", *SETTINGS, *QUICK, "--only", "decoding")
    assert code == 0, err
    assert "only models of kind encoder_decoder" in out


def test_a_section_that_cannot_be_takes_no_other_with_it(sixfold):
    short = ["--modify", "learned_positions:length=64", "--data.context", 32]
    code, out, err = sixfold("bench", "lm", *SETTINGS, *short, *QUICK, "--only", "training,length")
    assert code == 0, err
    assert "target tokens/s" in out
    assert "left out: this model reads at most 64 tokens" in out


def test_figures_are_shown_even_if_they_cannot_be_written(sixfold, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sixfold.cli.bench.write_text", full)
    code, out, err = sixfold(
        "bench", "transformer-base", *SETTINGS, *QUICK, "--only", "training", "--json", tmp_path / "x.json"
    )
    assert code == 1
    assert "target tokens/s" in out
    assert "No space left" in err


def test_a_file_stays_as_it_was_if_something_fails(sixfold, tmp_path, monkeypatch):
    (tmp_path / "x.json").write_text("before")

    def fail(*_):
        raise ValueError("it broke")

    monkeypatch.setattr(subject.BenchSubject, "held_out", fail)
    code, _, err = sixfold("bench", "transformer-base", *SETTINGS, *QUICK, "--only", "decoding", "--json", "x.json")
    assert (code, err.strip()) == (2, "sixfold: it broke")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert (tmp_path / "x.json").read_text() == "before"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "there is no recipe 'nonsense'"),
        (["--only", "speed"], "--only: there is no 'speed'; there are training, decoding, length"),
        (["--only", ","], "at least one"),
        (["--beams", "four"], "--beams takes whole numbers"),
        (["--beams", "0"], "--beams must be at least 1"),
        (["--ways", "both"], "there is no 'both'"),
        (["--precisions", "int4"], "there is no 'int4'"),
        (["--peers", "fairseq"], "there is no 'fairseq'"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--seconds", "0"], "--seconds must be more than 0"),
        (["--seconds", "nan"], "--seconds must be more than 0"),
        (["--seconds", "inf"], "--seconds must be more than 0 and at most"),
        (["--json", "."], "--json . is a directory"),
        (["--file", "nowhere"], "there is no file 'nowhere'"),
        (["--json", "nowhere/x.json"], "there is no directory"),
        (["--model.d_modell", "3"], None),
        (["--model.heads", "7"], "does not divide"),
    ],
)
def test_mistakes(sixfold, arguments, said):
    code, out, err = sixfold("bench", *arguments)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    assert said is None or said in err


def test_a_directory_that_is_called_as_a_recipe_and_is_no_run(sixfold, tmp_path):
    (tmp_path / "transformer-base").mkdir()
    code, out, err = sixfold("bench", "transformer-base", *SETTINGS, *QUICK, "--only", "training")
    assert code == 0, err
    assert "target tokens/s" in out


def test_a_run_has_its_model(sixfold, tmp_path):
    run = translating(tmp_path / "run")
    for wish in (["--modify", "rotary"], ["--model.heads", "1"], ["--data.train", "x"]):
        code, _, err = sixfold("bench", run, *wish)
        assert code == 2
        assert f"{wish[0]} is for recipes" in err
    code, _, err = sixfold("bench", tmp_path)
    assert code == 2
    assert err.count("\n") == 1
