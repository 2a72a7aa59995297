"""A run without a length: constant rate until validation stops improving, then a decay from the best weights."""

import pytest
from safetensors.torch import load_file

from sixfold.config.schema import Training
from sixfold.runs.run import Run
from sixfold.training import checkpoint
from sixfold.training.observers.display import Quiet
from sixfold.training.pace import UNKNOWN, UntilPatience
from sixfold.training.runner import train
from sixfold.training.schedule import rate
from tests.support import tiny
from tests.support.interrupting import assert_it_ends_as_left_alone

OPEN = {
    "training__steps": None,
    "training__patience": 2,
    "training__warmup": 3,
    "training__validate_every": 4,
    "training__checkpoint_every": 4,
    "training__schedule": "warmup_stable_decay",
    "training__metric": "loss",
    "training__learning_rate": 0.3,  # validation gets worse soon
    "training__keep": 50,
}


@pytest.fixture
def config(tmp_path):
    return tiny.config(tiny.corpus(tmp_path), **OPEN)


def test_the_rate_is_constant_until_patience_ends_and_then_falls_to_zero():
    training = Training(schedule="warmup_stable_decay", warmup=10, learning_rate=1.0)
    pace = UntilPatience(2)
    assert pace.known_steps == 0
    assert [rate(training, pace.virtual_step(step), pace.steps) for step in (5, 10, 400)] == [0.5, 1.0, 1.0]
    assert pace.decay(400, waited=1) is None
    assert pace.decay(400, waited=2) == 500
    pace.add(400, 500)
    rates = [rate(training, pace.virtual_step(step), pace.steps) for step in (400, 450, 500)]
    assert rates == pytest.approx([1.0, 0.5, 0.01], abs=0.01)
    assert pace.decay(500, waited=9) is None  # it falls once


def test_it_decays_from_the_best_weights_and_ends(config, tmp_path, monkeypatch):
    run, loaded = Run(tmp_path / "run"), []
    read = checkpoint.read
    monkeypatch.setattr(checkpoint, "read", lambda path: loaded.append(path.name) or read(path))
    outcome = train(config, run.directory, display=Quiet())
    records = list(run.records())
    (plan,) = [record for record in records if record["kind"] == "plan"]
    assert plan["steps"] == plan["step"] + plan["step"] // 4 == outcome.step
    before = [r for r in records if r["kind"] == "valid" and r["step"] <= plan["step"]]
    best = min(before, key=lambda record: record["loss"])["step"]
    assert plan["step"] == best + 2 * 4  # patience: two validations
    assert loaded[0] == f"step-{best}"
    assert records[-2]["step"] == outcome.step  # validated once more at the end
    assert outcome.reason == f"all {outcome.step} steps are done"


def test_interrupted_while_it_decays_it_ends_as_left_alone(config, tmp_path, monkeypatch):
    train(config, tmp_path / "first", display=Quiet())
    (plan,) = [r for r in Run(tmp_path / "first").records() if r["kind"] == "plan"]
    assert_it_ends_as_left_alone(config, tmp_path, monkeypatch, after=plan["step"] + 1)


def test_its_events_are_in_the_checkpoint(config, tmp_path):
    outcome = train(config, tmp_path / "run", display=Quiet())
    saved = checkpoint.read(tmp_path / "run" / "training" / f"step-{outcome.step}")
    assert saved.state["plan"]["events"][0] == [0, UNKNOWN]
    assert saved.state["plan"]["events"][1][1] == outcome.step
    assert load_file(tmp_path / "run" / "model.safetensors")
