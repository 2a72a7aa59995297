"""Builds a trainer, with all its parts, from a configuration and prepared text."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sixfold.config.schema import Config, Training
from sixfold.core.carried_state import CarryingLosses
from sixfold.core.place import Sizes
from sixfold.models.build import build
from sixfold.models.model import Model
from sixfold.runs.run import Run, versions
from sixfold.spec.registry import choose
from sixfold.tasks.task import Task, task_of
from sixfold.text.arrays import Examples
from sixfold.text.batches import Batches, OfEpoch
from sixfold.text.bpe_dropout import BpeDropout
from sixfold.text.bucketing import Lengths
from sixfold.text.corpus import Prepared
from sixfold.text.streams import Streams
from sixfold.training.average import make_average
from sixfold.training.observers.display import Display
from sixfold.training.observers.log import Log
from sixfold.training.observers.observer import Observer
from sixfold.training.optimizer import make_optimizers
from sixfold.training.pace import ByMinutes, Pace, Replayed, UntilPatience
from sixfold.training.preflight import check_streams
from sixfold.training.processes import Processes
from sixfold.training.store import Store
from sixfold.training.trainer import Trainer
from sixfold.training.trainer_parts import BatchSource, Parts
from sixfold.training.validation import Validation

_PLANNED_SIZES = ("d_model", "d_ff", "heads", "d_head", "encoder_layers", "decoder_layers", "dropout")


def build_model(config: Config, prepared: Prepared, processes: Processes, like: Model | None = None) -> Model:
    """The model of a run, with fresh weights.

    `like` is the model on `meta` that preflight built. Its checks are repeated only if the plan has changed sizes.
    """
    sizes, seed = config.sizes_with(prepared.tokenizers), config.training.seed
    if like is not None and not _is_like(like, config, sizes):
        like = None
    model = build(sizes, config.model.modifications, config.model.kind, seed=seed, like=like)
    return model.to(processes.device)


def _is_like(model: Model, config: Config, sizes: Sizes) -> bool:
    """Whether the model has all that the plan may have changed."""
    same_parts = model.assembly.modifications == tuple(map(choose, config.model.modifications))
    return same_parts and all(getattr(sizes, name) == getattr(model.sizes, name) for name in _PLANNED_SIZES)


def make_batches(task: Task, prepared: Prepared, config: Config, pieces: int) -> BatchSource:
    how: dict[str, Any] = {
        "batch_tokens": config.training.batch_tokens,
        "seed": config.training.seed,
        "words": len(prepared.tokenizers.target),
    }
    if task.reads_streams:
        check_streams(config.training, pieces)
        return Streams(prepared.train, task.batch, **how)
    of_epoch = _text_of_epochs(task, prepared, config)
    return Batches(prepared.train, task.lengths(prepared.train), task.batch, pieces=pieces, of_epoch=of_epoch, **how)


def _text_of_epochs(task: Task, prepared: Prepared, config: Config) -> OfEpoch | None:
    """The training text of each epoch, if it changes."""
    data = config.data
    if not data.bpe_dropout:
        return None
    seed = config.training.seed
    dropout = BpeDropout(prepared.tokenizers, data.bpe_dropout, seed=seed, longest=data.max_length)

    def of_epoch(epoch: int) -> tuple[Examples, Lengths]:
        examples = dropout.of_epoch(prepared.train, epoch)
        return examples, task.lengths(examples)

    return of_epoch


def make_pace(training: Training, started: float | None = None) -> Pace:
    """The plan of a run: by steps, by minutes, that of another run, or until patience ends."""
    if training.minutes is not None:
        return ByMinutes(training.minutes, started)
    if training.plan is not None:
        return Replayed(planned_events(Run(Path(training.plan))))
    if training.steps is not None:
        return Pace([(0, training.steps)])
    assert training.patience is not None, "a run has steps, minutes, another run's plan, or patience"
    return UntilPatience(training.patience)


def planned_events(run: Run) -> list[tuple[int, int]]:
    """The plan events in the log of a run by minutes, or of a run that repeats one."""
    training = run.need().read_config().training
    found = [(record["step"], record["steps"]) for record in run.records() if record["kind"] == "plan"]
    if not found or (training.minutes is None and training.plan is None):
        raise ValueError(f"training.plan: {run.directory} was not trained by minutes; give a run with training.minutes")
    return found


def make_trainer(
    run: Run,
    config: Config,
    prepared: Prepared,
    processes: Processes,
    *,
    model: Model | None = None,
    batches: BatchSource | None = None,
    log: Log | None = None,
    display: Display | None = None,
    observers: Sequence[Observer] = (),
    started: float | None = None,
) -> Trainer:
    """A trainer at step 0. Without a model, one is built; without a log, no log is written.

    `started` is the time (`time.monotonic`) from which training.minutes count; by default now.
    """
    training, task = config.training, task_of(config)
    model = model or build_model(config, prepared, processes)
    candidate = deepcopy(model).eval()
    if training.compile:
        model.compile()
    wrapped = processes.wrap(model, training.parallel)
    say: Any = display.say if display is not None else lambda text: None
    average = make_average(training, run, processes)
    fingerprints = [tokenizer.fingerprint for tokenizer in prepared.tokenizers]
    losses = task.carrying(partial(task.terms, smoothing=training.label_smoothing, recompute=training.recompute))
    all_observers = (*([] if display is None else [display]), *observers)
    parts = Parts(
        training=training,
        model=model,
        callable=wrapped,
        losses=losses,
        carried=losses if isinstance(losses, CarryingLosses) else None,
        main=task.main,
        label=task.label,
        watched=task.watched,
        rewriting=partial(task.rewriting, tokenizers=prepared.tokenizers),
        batches=batches or make_batches(task, prepared, config, processes.size * training.accumulate),
        optimizers=make_optimizers(model, training),
        processes=processes,
        store=Store(run, candidate, average, processes, keep=training.keep, say=say),
        validation=Validation(config, task, prepared, processes),
        pace=make_pace(training, started),
        log=log if processes.first else None,
        observers=all_observers if processes.first else (),
        said={
            "data": {"hashes": prepared.hashes, "tokenizers": fingerprints},
            "versions": versions(),
            "config": config.model_dump(mode="json"),
        },
        say=say,
    )
    torch.manual_seed(training.seed * 1_000_003 + processes.rank)  # dropout differs between processes
    return Trainer(parts)
