"""A run by minutes: `verify` repeats its plan."""

import pytest

from sixfold.runs.run import Run
from sixfold.training import pace
from sixfold.training.observers.display import Quiet
from sixfold.training.pace import Pace
from sixfold.training.runner import train
from sixfold.training.trainer import Trainer
from tests.support import tiny
from tests.support.breaking_off import breaking_off_after
from tests.support.verified import results


class SlowDown(pace.ByMinutes):
    """Plans 30 steps after the third one, and 20 after the eighth."""

    def plan(self, step, every):
        return {3: 30, 8: 20}.get(step)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run that was killed after 10 steps; its last checkpoint is of step 6, before its second plan."""
    monkeypatch.setattr("sixfold.training.make_trainer.ByMinutes", SlowDown)
    config = tiny.config(tiny.corpus(tmp_path), training__checkpoint_every=6, training__validate_every=100)
    training = config.training.model_copy(update={"steps": None, "minutes": 5.0, "warmup": 0.1})
    found = Run(tmp_path / "run")
    with breaking_off_after(Trainer, "step", 10):
        train(config.model_copy(update={"training": training}), found.directory, display=Quiet())
    return found


def test_its_own_plan_is_repeated(run):
    assert [(r["step"], r["steps"]) for r in run.records() if r["kind"] == "plan"] == [(3, 30), (8, 20)]
    found = results(run.directory, ["resume"])["resume"]
    assert found.result == "pass", found.note


def test_a_plan_that_a_resumed_run_forgets_is_found(run, monkeypatch):
    monkeypatch.setattr(pace.Replayed, "load_state", Pace.load_state)
    found = results(run.directory, ["resume"])["resume"]
    assert found.result == "fail"  # with another share of the run done, the rate differs, and so do the weights
