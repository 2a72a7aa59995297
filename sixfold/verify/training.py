"""Equalities of training: micro-batches = one batch, one process = two, resumed = uninterrupted."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from sixfold.config.schema import Config
from sixfold.core.device import be_deterministic, left_as_it_was
from sixfold.runs.run import Run
from sixfold.tasks.task import task_of
from sixfold.training import checkpoint
from sixfold.training.make_trainer import make_trainer
from sixfold.training.observers.log import Log
from sixfold.training.pace import UNKNOWN
from sixfold.training.processes import Processes
from sixfold.verify import gradients
from sixfold.verify.equality import Measured, equality
from sixfold.verify.files import furthest
from sixfold.verify.subject import NotApplicable, VerifiedRun

_RELATIVE = 1e-6  # relative to the largest number of the gradient
_STEPS = 2  # steps before the interruption, and as many after it
_PATIENCE = 300  # seconds for two processes to start and to compute one step


@equality(
    "micro-batches",
    "micro-batches = one batch",
    left="the gradient of one batch",
    right=f"of {gradients.PIECES} micro-batches",
    tolerance=_RELATIVE,
)
def micro_batches(subject: VerifiedRun) -> Measured:
    _need_divisible_steps(subject)
    one = _of_one_batch(subject)
    many = gradients.gradients(subject.run, _folder(subject, "micro-batches"), pieces=gradients.PIECES)
    return Measured(_relative(one, many), _exception(subject))


@equality(
    "processes",
    "one process = two",
    left="the gradient of one process",
    right="of two, which share the batch",
    tolerance=_RELATIVE,
)
def processes(subject: VerifiedRun) -> Measured:
    """Two processes on this machine, which communicate over the loopback interface only."""
    _need_divisible_steps(subject)
    one, folder = _of_one_batch(subject), _folder(subject, "processes")
    _run_two(subject, folder)
    two = safetensors.torch.load_file(folder / gradients.FOUND)
    return Measured(_relative(one, two), _exception(subject))


@equality(
    "resume",
    "resumed = uninterrupted",
    left=f"{2 * _STEPS} steps on from the last checkpoint",
    right=f"{_STEPS} steps, saved, resumed, {_STEPS} more",
    tolerance=0.0,
)
def resume(subject: VerifiedRun) -> Measured:
    """Bit for bit: weights, optimiser, averages, random numbers, the position in the data, the log."""
    training = subject.config.training
    saved = subject.checkpoint
    if not training.deterministic:
        raise NotApplicable("training.deterministic is false: steps can't be repeated exactly")
    _need_training_text(subject)
    with left_as_it_was():
        be_deterministic(True)
        alone, broken = (_twin(subject, name) for name in ("alone", "broken"))
        _train(subject, alone, 2 * _STEPS)
        _train(subject, broken, _STEPS)
        _train(subject, broken, _STEPS)
    left, right = (checkpoint.read(twin.training / f"step-{saved.step + 2 * _STEPS}") for twin in (alone, broken))
    found = _compare_tensors(left, right)
    differing = _differing_state(left, right) or _differing_log(alone, broken)
    return Measured(math.inf, f"{differing} differs") if differing and not found.difference else found


# A batch, divided in several ways ---------------------------------------------------------------------------------


def _need_training_text(subject: VerifiedRun) -> None:
    """Raise NotApplicable if the training text is missing."""
    _ = subject.prepared


def _need_divisible_steps(subject: VerifiedRun) -> None:
    """Raise NotApplicable if a step is one batch always, or the training text is missing."""
    if task_of(subject.config).reads_streams:
        raise NotApplicable("the state is carried from step to step, which one process computes as one batch")
    _need_training_text(subject)


def _of_one_batch(subject: VerifiedRun) -> dict[str, Tensor]:
    """The gradient of one batch, the reference; computed once."""
    if subject.one_batch is None:
        subject.one_batch = gradients.gradients(subject.run, _folder(subject, "one-batch"), merge=True)
    return subject.one_batch


def _relative(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference of the gradient relative to its largest number, or of the loss relative to it."""
    gradient = furthest(one, other) / max(float(t.abs().max()) for name, t in one.items() if name != gradients.LOSS)
    loss = furthest({"": one[gradients.LOSS]}, {"": other[gradients.LOSS]}) / float(one[gradients.LOSS])
    return max(gradient, loss)


def _exception(subject: VerifiedRun) -> str:
    """A note on the computations left out, if there are any."""
    parts = subject.batch_dependent()
    return f"except what depends on the batch by design (capacity, balance, jitter): {parts}" if parts else ""


def _folder(subject: VerifiedRun, name: str) -> Path:
    folder = subject.scratch / name
    folder.mkdir()
    return folder


def _run_two(subject: VerifiedRun, folder: Path) -> None:
    """Start two processes as torchrun would, and wait for them; raise a ValueError if they fail."""
    arguments = [os.path.realpath(subject.directory), str(folder), *subject.imports]
    command = [sys.executable, "-m", gradients.__name__, *arguments]
    port = _free_port()
    started = [
        subprocess.Popen(
            command, env=_environment(rank, port), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=_PATIENCE)[1] for process in started]
    except subprocess.TimeoutExpired:
        raise ValueError(f"two processes did not finish in {_PATIENCE} seconds") from None
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, output in zip(started, errors, strict=True):
        if process.returncode and output.strip():
            raise ValueError(f"two processes could not work together: {output.strip().splitlines()[-1]}")
    if any(process.returncode for process in started):
        raise ValueError("two processes could not work together; they gave no reason")


def _environment(rank: int, port: int) -> dict[str, str]:
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {
        **os.environ,
        **{name: str(value) for name, value in own.items()},
        **({} if loopback is None else {"GLOO_SOCKET_IFNAME": loopback}),  # the host name may not resolve
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


# Training, interrupted and not ------------------------------------------------------------------------------------


def _twin(subject: VerifiedRun, name: str) -> Run:
    """A run with this one's checkpoints, as links to its files, which are never written to."""
    twin = Run(_folder(subject, name))
    for directory in checkpoint.checkpoints_in(subject.run.training):
        for file in directory.rglob("*"):
            if file.is_file():
                link = twin.training / file.relative_to(subject.run.training)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(file.resolve())
    return twin


def _train(subject: VerifiedRun, twin: Run, steps: int) -> None:
    """Resume the twin from its last checkpoint, train for this many steps, and save."""
    saved = next(found for found in checkpoint.latest(twin.training) if isinstance(found, checkpoint.Checkpoint))
    processes = Processes(device=subject.device)
    trainer = make_trainer(twin, _config(subject), subject.prepared, processes, log=Log(twin))
    trainer.restore(saved)
    trainer.model.train()
    for _ in range(steps):
        trainer.step()
        trainer.plan()
        if trainer.checkpoint_is_due():
            trainer.save()
    if not trainer.saved:
        trainer.save()


def _config(subject: VerifiedRun) -> Config:
    """The run's configuration with a length that allows the extra steps, each of which is logged.

    A run by minutes that has so many steps left repeats its own plan.
    """
    training, saved = subject.config.training, subject.checkpoint
    planned, needed = training.steps or saved.state["plan"]["events"][-1][1], saved.step + 2 * _STEPS
    by_minutes = training.minutes is not None or training.plan is not None
    length: dict[str, Any]
    if by_minutes and needed <= planned != UNKNOWN:
        length = {"steps": None, "minutes": None, "plan": str(subject.directory)}
    else:
        length = {"steps": max(planned, needed), "minutes": None, "plan": None}
    changes = {**length, "log_every": 1, "compile": False}
    return subject.config.model_copy(update={"training": training.model_copy(update=changes)})


def _differing_state(left: checkpoint.Checkpoint, right: checkpoint.Checkpoint) -> str:
    """The first differing entry of two checkpoints' states; the log's is left out: its times, and so sizes, differ."""
    for key in ("progress", "data", "batches", "guard", "healthy", "grid", "plan"):
        if json.dumps(left.state.get(key)) != json.dumps(right.state.get(key)):
            return f"{key!r} of state.json"
    return ""


def _differing_log(left: Run, right: Run) -> str:
    here, there = ([_timeless(record) for record in run.records()] for run in (left, right))
    return "" if here == there else "log.jsonl"


def _timeless(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "seconds"}


def _compare_tensors(left: checkpoint.Checkpoint, right: checkpoint.Checkpoint) -> Measured:
    apart = {
        group: furthest(left.tensors(group), right.tensors(group))
        for group in ("model", "optimizer", "average", "random")
    }
    differing = [group for group, difference in apart.items() if difference]
    return Measured(max(apart.values()), f"{', '.join(differing)} differ" if differing else "")
