"""`sixfold plan` shows what `sixfold train` would do, and does nothing."""

import json

import pytest

from sixfold.runs.run import Run
from tests.support import tiny


@pytest.fixture
def text(tmp_path):
    tiny.corpus(tmp_path)
    return [
        "--data.train",
        str(tmp_path / "train"),
        "--data.valid",
        str(tmp_path / "valid"),
        *("--data.source", "w", "--data.target", "r", "--training.device", "cpu"),
    ]


def test_a_plan_names_each_choice_with_its_reason_and_writes_nothing(sixfold, text, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = sixfold("plan", *text)
    assert code == 0
    for key in ("data.vocabulary", "model.d_model", "model.layers", "training.learning_rate", "training.patience"):
        assert f"  {key} " in out
    assert "4 × d_model" in out
    assert "until validation stops improving" in out
    assert "to change a value, give its key, such as --data.vocabulary" in out
    assert sorted(tmp_path.rglob("*")) == before


def test_training_follows_the_plan_and_keeps_it(sixfold, text, tmp_path):
    length = ["--training.steps", "3"]
    planned = json.loads(sixfold("plan", *text, *length, "--json")[1])["plan"]
    code, _, err = sixfold("train", *text, *length, "--out", str(tmp_path / "run"))
    assert code == 0
    assert "plan, for all that was not given:" in err
    run = Run(tmp_path / "run")
    config = run.read_config()
    for key, choice in planned.items():
        section, name = key.split(".")
        assert getattr(getattr(config, section), name) == choice["value"], key
    assert [[key, c["value"], c["reason"]] for key, c in planned.items()] == run.read_about()["plan"]


def test_given_values_stay_and_are_not_in_the_plan(sixfold, text):
    code, out, _ = sixfold("plan", *text, "--model.d_model", "48", "--training.minutes", "0.01", "--json")
    plan = json.loads(out)["plan"]
    assert code == 0
    assert "model.d_model" not in plan
    assert plan["model.d_ff"]["value"] == 192
    assert "training.schedule" in plan


def test_help_says_which_keys_are_planned(sixfold):
    _, out, _ = sixfold("train", "--help")
    assert "width of the model [default: planned]" in " ".join(out.split())
    _, out, _ = sixfold("count", "--help")
    assert "width of the model [default: 512]" in " ".join(out.split())


def test_a_mistake_is_one_sentence(sixfold, tmp_path):
    code, _, err = sixfold(
        "plan", "--data.train", str(tmp_path / "nothing"), "--data.source", "a", "--data.target", "b"
    )
    assert code == 2
    assert "there is no file" in err
    assert "Traceback" not in err
