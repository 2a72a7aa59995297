"""Nothing is ever lost: a run that was killed, interrupted or damaged goes on as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from sixfold.runs.run import Run
from sixfold.training import checkpoint
from sixfold.training.observers.display import Quiet
from sixfold.training.pace import FIRST
from sixfold.training.runner import resume, train
from sixfold.training.trainer import Trainer
from tests.support import tiny
from tests.support.breaking_off import breaking_off_after
from tests.support.covering import covering

ROOT = Path(__file__).parents[2]
# Waiting threads sleep: two threads in each of several processes would spin each other to a standstill.
CALM = {**os.environ, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory):
    """Runs that nobody disturbs, by how their weights are averaged: each is made once."""

    @cache
    def made(average):
        folder = tiny.corpus(tmp_path_factory.mktemp("left_alone"))
        train(tiny.config(folder, training__average=average), folder / "run", display=Quiet())
        return folder

    return made


@pytest.fixture
def corpus(tmp_path):
    return tiny.corpus(tmp_path)


@pytest.fixture
def run(left_alone, tmp_path):
    """A run that is done, with a corpus of its own."""
    return Run(tiny.copied(left_alone(None), tmp_path) / "run")


@pytest.mark.parametrize(
    "killed",
    [
        ["translation"],
        ["translation", "switch:experts=4,every=1"],
        ["translation", "product_keys:keys=8,nearest=4,heads=2,d_key=8"],
        ["classification", "shaw"],
    ],
    ids=lambda killed: "-".join(killed).partition(":")[0],
)
def test_a_run_killed_at_any_moment_ends_as_one_left_alone(tmp_path, killed):
    command = [sys.executable, "-m", "tests.support.killing", str(tmp_path), *killed]
    done = subprocess.run(command, env=CALM, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@covering(average=[None, 3, 0.9], stop_at=[1, 5, 6, 8])
def test_an_interrupted_run_ends_as_one_left_alone(left_alone, tmp_path, monkeypatch, average, stop_at):
    folder, broken, step = left_alone(average), Run(tmp_path / "broken"), Trainer.step
    config, whole = tiny.config(folder, training__average=average), Run(folder / "run")

    def interrupted(trainer):
        step(trainer)
        if trainer.progress.step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "step", interrupted)
    outcome = train(config, broken.directory, display=Quiet())
    assert outcome.signal == signal.SIGTERM
    assert not outcome.finished
    monkeypatch.setattr(Trainer, "step", step)
    assert resume(broken.directory, display=Quiet()).finished
    mine, theirs = tiny.bytes_of(broken), tiny.bytes_of(whole)
    assert mine["model.safetensors"] == theirs["model.safetensors"]
    last = {name for name in theirs if "step-12" in name}
    assert len(last) >= 3
    assert all(mine[name] == theirs[name] for name in last)
    without = [record for record in tiny.log_without_times(broken) if "interrupted by" not in str(record)]
    assert without == tiny.log_without_times(whole)


def test_a_truncated_checkpoint_is_reported_and_the_one_before_used(run, capsys):
    before = tiny.bytes_of(run)
    weights = run.training / "step-12" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    resume(run.directory)
    assert "step-12" in capsys.readouterr().err
    assert tiny.bytes_of(run) == before


def test_a_full_disk_is_reported_and_nothing_half_is_left(left_alone, tmp_path, monkeypatch):
    folder, run = left_alone(None), Run(tmp_path / "run")
    config, whole = tiny.config(folder), Run(folder / "run")
    save = checkpoint.safetensors.torch.save_file
    saved = []

    def full(tensors, path, *rest):
        saved.append(path)
        if len(saved) > 8:
            raise OSError(28, "No space left on device", str(path))
        save(tensors, path, *rest)

    monkeypatch.setattr(checkpoint.safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        train(config, run.directory, display=Quiet())
    assert not list(run.training.glob(".*"))
    monkeypatch.setattr(checkpoint.safetensors.torch, "save_file", save)
    resume(run.directory, display=Quiet())
    assert tiny.bytes_of(run)["model.safetensors"] == tiny.bytes_of(whole)["model.safetensors"]


def test_only_steps_patience_and_display_may_change(run):
    with pytest.raises(ValueError, match="learning_rate"):
        resume(run.directory, {"training.learning_rate": "1"}, display=Quiet())
    assert resume(run.directory, {"training.steps": "14"}, display=Quiet()).reason == "all 14 steps are done"
    assert Run(run.directory).read_config().training.steps == 14


def test_changed_data_are_an_error_unless_allowed(run):
    corpus = run.directory.parent
    with open(corpus / "train.w", "a") as words, open(corpus / "train.r", "a") as letters:
        words.write("abcd\n")
        letters.write("d c b a\n")
    more = {"training.steps": "16"}
    with pytest.raises(ValueError, match="train"):
        resume(run.directory, more, display=Quiet())
    resume(run.directory, more, allow_changed_data=True, display=Quiet())
    assert json.loads((run.data / "index.json").read_text())["report"]["parts"]["train"]["lines"] == 61


def test_an_existing_run_is_not_overwritten_unasked(run):
    corpus, before = run.directory.parent, tiny.bytes_of(run)
    with pytest.raises(ValueError, match="--overwrite"):
        train(tiny.config(corpus), run.directory, display=Quiet())
    assert tiny.bytes_of(run) == before
    train(tiny.config(corpus, training__seed=2), run.directory, overwrite=True, display=Quiet())
    assert tiny.bytes_of(run) != before


def test_a_second_writer_is_refused_and_a_crash_frees_the_lock(run):
    holder = (
        "import sys, time\nfrom sixfold.runs.run import Run\n"
        "with Run(sys.argv[1]).locked():\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(run.directory)], stdout=subprocess.PIPE, text=True, env=CALM
    ) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=str(process.pid)):
            resume(run.directory, display=Quiet())
        process.kill()
        process.wait()
    resume(run.directory, display=Quiet())


def test_bad_data_leave_nothing_behind(corpus):
    (corpus / "train.r").write_text("a b\n")
    with pytest.raises(ValueError, match="60"):
        train(tiny.config(corpus), corpus / "run", display=Quiet())
    assert not (corpus / "run").exists()


def by_minutes(corpus, minutes, **settings):
    config = tiny.config(corpus, **settings)
    training = config.training.model_copy(update={"steps": None, "minutes": minutes, "warmup": 0.1})
    return config.model_copy(update={"training": training})


def test_minutes_become_steps_and_the_plan_is_in_the_log(corpus):
    run = Run(corpus / "run")
    train(by_minutes(corpus, 0.02), run.directory, display=Quiet())
    records = list(run.records())
    plans = [(r["step"], r["steps"]) for r in records if r["kind"] == "plan"]
    assert plans[0][0] == FIRST
    assert plans[-1][1] == max(r["step"] for r in records)  # the last plan was kept


def test_a_run_that_repeats_the_plan_of_another_is_the_same_run_even_if_it_is_interrupted(corpus):
    first, again = Run(corpus / "run"), Run(corpus / "again")
    train(by_minutes(corpus, 0.02), first.directory, display=Quiet())
    config = tiny.config(corpus)
    training = config.training.model_copy(
        update={"steps": None, "minutes": None, "plan": str(first.directory), "warmup": 0.1}
    )
    done = max(record["step"] for record in first.records())  # few on a busy machine
    with breaking_off_after(Trainer, "step", done // 2):
        train(config.model_copy(update={"training": training}), again.directory, display=Quiet())
    resume(again.directory, display=Quiet())
    left, right = (run.directory / "model.safetensors" for run in (first, again))
    assert left.read_bytes() == right.read_bytes()
    assert tiny.log_without_times(first) == tiny.log_without_times(again)


def test_from_takes_weights_and_tokenizer_and_names_sizes_that_differ(run):
    old, corpus = run, run.directory.parent
    new = Run(corpus / "new")
    train(tiny.config(corpus, training__steps=1), new.directory, start_from=old.directory, display=Quiet())
    first = next(r for r in new.records() if r["kind"] == "train")
    assert first["loss"] < next(r for r in old.records() if r["kind"] == "train")["loss"]
    assert (old.directory / "source.tokenizer.json").read_bytes() == (
        new.directory / "source.tokenizer.json"
    ).read_bytes()
    with pytest.raises(ValueError, match="d_ff is 32, here 64"):
        train(tiny.config(corpus, model__d_ff=64), corpus / "other", start_from=old.directory, display=Quiet())
