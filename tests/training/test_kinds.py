"""All three kinds of models train from text, and the ways to compute a step change only what they say."""

import pytest

from sixfold.runs.run import Run
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import train
from tests.support.interrupting import assert_it_ends_as_left_alone
from tests.support.plain_text import recipe


def losses(run):
    return [record["loss"] for record in run.records() if record["kind"] == "train"]


@pytest.mark.parametrize("name", ["lm", "mlm"])
@pytest.mark.parametrize("tokenizer", ["characters", "bytes", "bpe"])
def test_a_plain_text_is_learned(tmp_path, name, tokenizer):
    run = Run(tmp_path / "run")
    train(recipe(tmp_path, name, data__tokenizer=tokenizer), run.directory, display=Quiet())
    assert losses(run)[-1] < 0.8 * losses(run)[0]
    assert [r["best"] for r in run.records() if r["kind"] == "valid"] == [True, True]


@pytest.mark.parametrize("name", ["lm", "mlm"])
def test_an_interrupted_one_ends_as_one_left_alone(tmp_path, monkeypatch, name):
    assert_it_ends_as_left_alone(recipe(tmp_path, name), tmp_path, monkeypatch)


def test_recomputing_changes_nothing_and_half_precision_a_little(tmp_path):
    found = {}
    for name, settings in {
        "plain": {},
        "recomputed": {"training__recompute": "true"},
        "half": {"training__precision": "bfloat16"},
    }.items():
        run = Run(tmp_path / name)
        train(recipe(tmp_path, "lm", **settings), run.directory, display=Quiet())
        found[name] = losses(run)
    assert found["recomputed"] == found["plain"]
    assert found["half"] != found["plain"]
    assert found["half"] == pytest.approx(found["plain"], rel=0.02)


def test_what_is_logged_has_no_smoothing(tmp_path):
    """Before the first step has acted, the loss is that of the fresh model, whatever the smoothing."""
    found = []
    for smoothing in ("0.0", "0.3"):
        run = Run(tmp_path / smoothing)
        config = recipe(
            tmp_path,
            "lm",
            training__label_smoothing=smoothing,
            training__steps="1",
            training__log_every="1",
        )
        train(config, run.directory, display=Quiet())
        found += losses(run)
    assert found[0] == found[1]


def test_a_model_of_classes_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"model\.classes"):
        train(recipe(tmp_path, "mlm", model__classes="3"), tmp_path / "run", display=Quiet())
