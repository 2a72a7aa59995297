"""Many processes train as one does, whether each has all weights or a part of them."""

import fcntl
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from sixfold.config.files import write_config
from sixfold.runs.run import Run
from sixfold.training import checkpoint
from sixfold.training.processes import reported_once
from tests.support import tiny
from tests.support.many import CUT_UP, MOVES, TASKS

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(ROOT)}
TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def runs(tmp_path_factory, worker_id):
    """All runs of `many`, in one folder; the workers of pytest share it, and the first that comes makes them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "many"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            command = [*TWO, "tests.support.many", str(tiny.corpus(folder))]
            done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stdout + done.stderr
            (folder / "done").touch()
    return lambda name: Run(folder / name)


def weights(run, step=None):
    places = checkpoint.checkpoints_in(run.training)
    return checkpoint.read(places[0] if step is None else run.training / f"step-{step}").tensors("model")


def furthest(left, right):
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def numbers(run):
    """What the log says of training and validation, but for padding, which depends on how a batch is dealt."""
    kept = ("step", "loss", "words_loss", "gradient", "tokens", "symbol_error_rate", "accuracy")
    return [{k: r[k] for k in kept if k in r} for r in run.records() if r["kind"] in ("train", "valid")]


@pytest.mark.parametrize("name", ["two", "accumulated"])
def test_two_processes_and_micro_batches_are_one_batch(runs, name):
    one, other = runs("one"), runs(name)
    assert furthest(weights(one), weights(other)) < TOLERANCE
    assert furthest(weights(one), weights(one, 0)) > 1000 * TOLERANCE
    assert all(
        mine == pytest.approx(theirs, rel=1e-4) for mine, theirs in zip(numbers(one), numbers(other), strict=True)
    )


def test_two_processes_follow_the_plan_of_the_first(runs):
    two, one = runs("minutes"), runs("repeated")
    plans = [[(r["step"], r["steps"]) for r in run.records() if r["kind"] == "plan"] for run in (two, one)]
    assert plans[0]
    assert plans[0] == plans[1]
    # There may be hundreds of steps, over which last bits grow.
    assert furthest(weights(one), weights(two)) < 0.01 * furthest(weights(one), weights(one, 0))


@pytest.mark.parametrize("name", CUT_UP)
def test_shards_are_trained_as_whole_models(runs, name):
    ddp, fsdp = runs(f"{name}-ddp"), runs(f"{name}-fsdp")
    assert furthest(weights(ddp), weights(fsdp)) < TOLERANCE
    assert furthest(weights(ddp), weights(ddp, 0)) > 1000 * TOLERANCE
    assert all(
        mine == pytest.approx(theirs, rel=1e-4) for mine, theirs in zip(numbers(ddp), numbers(fsdp), strict=True)
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_each_term_is_divided_by_its_own_count_in_the_whole_step(runs, task, parallel):
    """Texts differ in length, so micro-batches have other shares of the words than of the labels."""
    one, other = runs(f"{task}-one"), runs(f"{task}-{parallel}")
    assert furthest(weights(one), weights(other)) < TOLERANCE
    assert furthest(weights(one), weights(one, 0)) > 1000 * TOLERANCE
    assert all(
        mine == pytest.approx(theirs, rel=1e-4) for mine, theirs in zip(numbers(one), numbers(other), strict=True)
    )
    assert all(("words_loss" in line) == (task == "two_terms") for line in numbers(one))


def test_each_process_writes_its_part_and_nothing_is_pickled(runs, monkeypatch):
    place = runs("vanilla-fsdp").training / "step-20"
    parts = {"shard-00001-model-00001-of-00001.safetensors", "shard-00002-model-00001-of-00001.safetensors"}
    assert {path.name for path in place.iterdir()} == {
        *("model", "optimizer"),  # directories
        *("optimizer.safetensors", "random.safetensors", "state.json"),
    }
    assert {path.name for path in (place / "model").iterdir()} == parts
    assert {path.name for path in (place / "optimizer").iterdir()} == parts
    sizes = [path.stat().st_size for path in (place / "model").iterdir()]
    assert max(sizes) < 1.2 * min(sizes)
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    assert checkpoint.read(place).tensors("optimizer").keys() > {"tables.0.weight/exp_avg", "tables.0.weight/step"}


def test_a_damaged_part_is_noticed(runs, tmp_path):
    place = Path(shutil.copytree(runs("vanilla-fsdp").training / "step-20", tmp_path / "step-20"))
    part = min((place / "model").iterdir())
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(checkpoint.DamagedError, match="model/shard-00001"):
        checkpoint.read(place)
    part.unlink()
    with pytest.raises(checkpoint.DamagedError, match="model/shard-00001"):
        checkpoint.read(place)


@pytest.mark.parametrize("name", MOVES)
def test_a_run_goes_on_with_another_number_of_processes(runs, name):
    run, (_, before, after, _) = runs(name), MOVES[name]
    assert [checkpoint.read_state(run.training / f"step-{step}")["processes"] for step in (10, 20)] == [before, after]
    assert furthest(weights(run, 20), weights(runs("one"), 20)) < TOLERANCE
    assert furthest(weights(run, 20), weights(run, 10)) > 1000 * TOLERANCE


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_resumed_by_as_many_it_goes_on_bit_for_bit(runs, parallel):
    broken, unbroken = runs(f"{parallel}-broken"), runs(f"{parallel}-unbroken")
    for group in ("model", "optimizer", "average", "random"):
        left, right = (checkpoint.read(run.training / "step-8").tensors(group) for run in (broken, unbroken))
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)
    assert tiny.log_without_times(broken) == tiny.log_without_times(unbroken)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_bad_gradient_of_one_process_is_skipped_by_all(runs, parallel):
    run = runs(f"{parallel}-poisoned")
    assert [r["step"] for r in run.records() if r["kind"] == "skipped"] == [5]
    assert all(torch.isfinite(tensor).all() for tensor in weights(run).values())


def test_a_signal_to_torchrun_saves_and_an_error_is_said_once(tmp_path):
    folder = tiny.corpus(tmp_path)
    config, run = folder / "tiny.yaml", Run(folder / "run")
    write_config(tiny.config(folder, training__steps=10**6, training__validate_every=10**6), config)
    command = [*TWO, "sixfold", "train", str(config), "--out", str(run.directory)]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        while not any(record["step"] >= 6 for record in run.records()):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        asked = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert time.monotonic() - asked < 20
    assert process.returncode != 0
    stopped = list(run.records())[-1]
    assert stopped == {"kind": "stopped", "step": stopped["step"], "reason": "interrupted by SIGTERM"}
    assert checkpoint.read(checkpoint.checkpoints_in(run.training)[0]).step == stopped["step"]
    assert said.count("SIGTERM: the run stops after this step and saves") == 1, said  # at once, by the first process
    assert said.count("--resume") == 2, said  # there, and among what to type next

    again = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert again.returncode != 0
    lines = again.stderr.splitlines()
    assert len([line for line in lines if line.startswith("sixfold: ")]) == 1, again.stderr
    assert "--overwrite" in lines[0]
    assert len([line for line in lines if line.startswith("Traceback")]) == 1, again.stderr  # torchrun's own


@pytest.mark.parametrize(("rank", "error"), [("0", ValueError), ("1", SystemExit)])
def test_a_mistake_that_all_processes_find_is_said_by_the_first(monkeypatch, rank, error):
    monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(error), reported_once():
        raise ValueError
