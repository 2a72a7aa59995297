"""A checkpoint's state or a run's record that was damaged, or is from an early version."""

import json
import re

import pytest

from sixfold.training import checkpoint
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import resume, train
from sixfold.training.trainer import Trainer
from tests.support import tiny
from tests.support.breaking_off import Listener


def spoil(path, how):
    state = json.loads(path.read_text())
    early = {key: value for key, value in state.items() if key != "hash"}
    bytes_ = {
        "no UTF-8": path.read_bytes()[:-9] + b"\xff" * 9,
        "empty": b"",
        "a list": b"[]",
        "a number": path.read_bytes().replace(b'"step": 4', b'"step": 5', 1),
        **{f"no {key}": json.dumps({**early, key: None}).encode() for key in ("progress", "files", "step", "log")},
    }
    path.write_bytes(bytes_[how])


@pytest.mark.parametrize(
    "how", ["no UTF-8", "empty", "a list", "a number", "no progress", "no files", "no step", "no log"]
)
def test_a_damaged_state_is_passed_over(run, how):
    before, listener = tiny.bytes_of(run), Listener()
    spoil(run.training / "step-4" / "state.json", how)
    assert resume(run.directory, display=listener).finished
    assert re.search(r"step-4.* is (damaged|not as).*; step-2 is used", listener.words[0])
    assert tiny.bytes_of(run) == before


@pytest.mark.parametrize("average", [None, 2])
def test_a_state_damaged_while_training_is_no_hindrance(run, monkeypatch, average):
    step = Trainer.step

    def damaging(trainer):
        step(trainer)
        (trainer.store.run.training / "step-0" / "state.json").write_text(json.dumps({"format": checkpoint.FORMAT}))
        (trainer.store.run.training / "step-2" / "state.json").write_bytes(
            b"\xff"
        ) if trainer.progress.step == 3 else None

    monkeypatch.setattr(Trainer, "step", damaging)
    wanted = tiny.short(run.directory.parent, training__average=average, training__keep=3)
    assert train(wanted, run.directory.with_name("new"), display=Quiet()).finished


def test_an_early_checkpoint_without_hash_and_configuration_goes_on(run):
    path = run.training / "step-4" / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in state.items() if k not in ("hash", "config", "versions", "data")}))
    assert resume(run.directory, {"training.steps": "5"}, display=Quiet()).finished


@pytest.mark.parametrize("become", ["[]", "{", '{"hashes": 3}', None])
def test_without_run_json_the_checkpoint_knows_enough(run, become):
    known = run.read_about()
    if become is None:
        run.about.unlink()
    else:
        run.about.write_text(become)
    listener = Listener()
    assert resume(run.directory, {"training.steps": "5"}, display=listener).finished
    assert "it is rewritten from step-4" in listener.words[0]
    assert {key: run.read_about()[key] for key in ("hashes", "report")} == {k: known[k] for k in ("hashes", "report")}
