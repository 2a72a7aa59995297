"""An observer hears of a run from its beginning to its end, and the run is the same with it as without."""

import pytest

from sixfold.runs.run import Run
from sixfold.training.observers.display import Quiet
from sixfold.training.observers.observer import Observer
from sixfold.training.runner import resume, train
from tests.support import tiny


class Listener(Observer):
    """Writes down what it hears."""

    def __init__(self):
        self.begun, self.steps, self.records, self.closed = [], [], [], 0

    def begin(self, step, steps):
        self.begun.append((step, steps))

    def step(self, done):
        self.steps.append(done)

    def record(self, record):
        self.records.append(dict(record))

    def close(self):
        self.closed += 1


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """→ a run with an observer, one without, and what the observer heard"""
    folder, listener = tiny.corpus(tmp_path_factory.mktemp("heard")), Listener()
    config = tiny.config(folder)
    train(config, folder / "heard", display=Quiet(), observers=[listener])
    train(config, folder / "alone", display=Quiet())
    return Run(folder / "heard"), Run(folder / "alone"), listener


def test_it_hears_the_beginning_every_step_and_the_end(runs):
    _, _, listener = runs
    assert (listener.begun, listener.closed) == ([(0, 12)], 1)
    assert [(done.step, done.steps) for done in listener.steps] == [(step, 12) for step in range(1, 13)]
    assert all(done.tokens > 0 and done.seconds > 0 and done.rate > 0 for done in listener.steps)


def test_it_hears_every_line_of_the_log(runs):
    heard, _, listener = runs
    assert listener.records == list(heard.records())
    found = [(line["kind"], line["step"]) for line in listener.records]
    assert [step for kind, step in found if kind == "train"] == [3, 6, 9, 12]
    assert [step for kind, step in found if kind == "valid"] == [6, 12]
    assert found[-1] == ("stopped", 12)


def test_a_line_is_the_mean_of_the_steps_it_heard(runs):
    _, _, listener = runs
    steps, line = listener.steps[:3], next(line for line in listener.records if line["kind"] == "train")
    mean = sum(done.loss * done.tokens for done in steps) / sum(done.tokens for done in steps)
    assert line["loss"] == pytest.approx(mean, rel=1e-12)
    assert line["tokens"] == sum(done.tokens for done in steps)
    assert line["learning_rate"] == steps[-1].rate


def test_the_run_is_the_same_without_it(runs):
    heard, alone, _ = runs
    assert tiny.bytes_of(heard) == tiny.bytes_of(alone)
    assert tiny.log_without_times(heard) == tiny.log_without_times(alone)


def test_it_hears_from_where_a_run_goes_on(runs, tmp_path):
    folder = tiny.copied(runs[1].directory.parent, tmp_path)
    listener = Listener()
    resume(folder / "alone", {"training.steps": "14"}, display=Quiet(), observers=[listener])
    assert listener.begun == [(12, 14)]
    assert [done.step for done in listener.steps] == [13, 14]


def test_one_that_fails_ends_the_run_and_all_are_closed(tmp_path):
    class Broken(Listener):
        def step(self, done):
            raise RuntimeError("a mistake in an observer")

    listeners = [Listener(), Broken()]
    with pytest.raises(RuntimeError, match="a mistake in an observer"):
        train(tiny.config(tiny.corpus(tmp_path)), tmp_path / "run", display=Quiet(), observers=listeners)
    assert [listener.closed for listener in listeners] == [1, 1]
