"""What the guard does to a run: NaN, Inf, and a learning rate a hundred times too high."""

import math

import pytest
import torch

from sixfold.runs.run import Run
from sixfold.training import checkpoint
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import train
from sixfold.training.trainer import Trainer
from tests.support import tiny


@pytest.fixture
def corpus(tmp_path):
    return tiny.corpus(tmp_path)


def poison(monkeypatch, value, steps):
    """Let the gradient of these steps hold a value."""
    backward = Trainer.backward

    def poisoned(trainer, batches, scored):
        loss = backward(trainer, batches, scored)
        if trainer.progress.step + 1 in steps:
            next(trainer.model.parameters()).grad.view(-1)[0] = value
        return loss

    monkeypatch.setattr(Trainer, "backward", poisoned)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bad_gradient_is_skipped(corpus, monkeypatch, value):
    seen = {}
    learn = Trainer.learn

    def watched(trainer, loss, norm):
        before = torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters()])
        learn(trainer, loss, norm)
        after = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        seen[trainer.progress.step] = torch.equal(before, after)

    monkeypatch.setattr(Trainer, "learn", watched)
    poison(monkeypatch, value, {5})
    run = Run(corpus / "run")
    assert train(tiny.config(corpus), run.directory, display=Quiet()).finished
    assert [step for step, unmoved in seen.items() if unmoved] == [5]
    assert [r["step"] for r in run.records() if r["kind"] == "skipped"] == [5]


def test_repeated_ones_roll_back_to_the_last_good_state_and_data_go_on(corpus, monkeypatch):
    batches = []
    backward = Trainer.backward

    def noted(trainer, step, scored):
        batches.append((trainer.batches.epoch, step[0].source.tolist()))
        return backward(trainer, step, scored)

    monkeypatch.setattr(Trainer, "backward", noted)
    poison(monkeypatch, math.nan, {6, 7, 8})
    run = Run(corpus / "run")
    rolled = {}
    roll_back = Trainer.roll_back

    def watched(trainer):
        roll_back(trainer)
        rolled["weights"] = {name: t.clone() for name, t in trainer.model.state_dict().items()}
        rolled["rate"] = trainer.guard.rate

    monkeypatch.setattr(Trainer, "roll_back", watched)
    kept = tiny.config(corpus, training__keep=9)
    assert train(kept, run.directory, display=Quiet()).finished
    good = checkpoint.read(run.training / "step-4").tensors("model")
    assert all(torch.equal(tensor, good[name]) for name, tensor in rolled["weights"].items())
    assert rolled["rate"] == 0.5
    assert [r["step"] for r in run.records() if r["kind"] == "rolled back"] == [8]
    assert len({str(b) for b in batches}) == len(batches) == 12  # no batch came twice within its epoch


def test_a_run_that_never_works_stops_with_an_explanation(corpus, monkeypatch):
    poison(monkeypatch, math.nan, set(range(100)))
    run = Run(corpus / "run")
    config = tiny.config(corpus, training__steps=50, training__log_every=100)
    outcome = train(config, run.directory, display=Quiet())
    assert not outcome.finished
    assert "learning_rate" in outcome.reason
    kinds = [r["kind"] for r in run.records()]
    assert kinds.count("rolled back") == 3
    assert kinds[-2:] == ["train", "stopped"]  # there is something to plot


def test_a_rate_a_hundred_times_too_high_is_noticed_and_lowered(corpus):
    run = Run(corpus / "run")
    config = tiny.config(
        corpus,
        training__steps=150,
        training__learning_rate=1.0,
        training__warmup=60,
        training__schedule="constant",
        training__clip=0,
        training__validate_every=150,
        training__checkpoint_every=20,
    )
    train(config, run.directory, display=Quiet())
    kinds = [r["kind"] for r in run.records()]
    assert "rolled back" in kinds or "gave up" in kinds
