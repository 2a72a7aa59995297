"""Starts and resumes runs: from a configuration or a run directory to a trainer, and trains."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sixfold.config.advice import advice
from sixfold.config.files import with_whole_paths
from sixfold.config.schema import Config
from sixfold.core.device import be_deterministic, left_as_it_was
from sixfold.disk.atomic import sweep
from sixfold.models.model import Model
from sixfold.runs.run import Run, as_text
from sixfold.tasks.task import settled, task_of
from sixfold.text.corpus import Prepared, copy_prepared, data_files, data_hashes, need_room, open_prepared
from sixfold.text.corpus import prepare as prepare_text
from sixfold.text.labels import read_labels, write_labels
from sixfold.text.preparation import ProgressCallback
from sixfold.text.tokenizer import Tokenizers
from sixfold.training import checkpoint
from sixfold.training.make_trainer import build_model, make_trainer
from sixfold.training.observers.display import NO_BEST, Display, Quiet
from sixfold.training.observers.log import Log
from sixfold.training.observers.observer import Observer
from sixfold.training.observers.tensorboard import Board
from sixfold.training.planning import complete, warning_of_slow_preparation
from sixfold.training.planning import lines as plan_lines
from sixfold.training.preflight import check
from sixfold.training.processes import Processes, reported_once, together
from sixfold.training.resume_checks import (
    MAY_CHANGE,
    need_same_config,
    need_same_tokenizers,
    need_steps,
    read_notes,
    surroundings,
)
from sixfold.training.start_from import inherit, take, tell_inherited
from sixfold.training.trainer import Trainer
from sixfold.training.what_next import to_resume


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    reason: str
    run: Path
    finished: bool  # False after a signal, or if the guard gave up
    signal: int | None = None  # the number of the signal that stopped it
    step: int = 0  # the last step
    best_step: int = 0  # the step whose weights the run's model has
    scores: Mapping[str, float] = field(default_factory=dict)  # of the last validation in this call
    best: float | None = None  # best value of the metric


def prepare(
    config: Config,
    folder: str | Path,
    *,
    start_from: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> Prepared:
    """Tokenise the text of a configuration into a folder, to train several runs on it: `train(…, prepared=…)`.

    The folder must be new or empty, or hold prepared text, which is replaced. With `start_from`, the text is for runs
    that begin with this trained run: its tokenizers are used, and what the configuration does not give is inherited.
    """
    before = None if start_from is None else Run(start_from).need()
    config = with_whole_paths(settled(config if before is None else inherit(config, before)))
    tokenizers = None if before is None else Tokenizers.load(before.directory)
    folder = Path(folder).absolute()
    need_room(folder)
    prepared = prepare_text(config.data, task_of(config).form, folder, tokenizers, progress)
    prepared.tokenizers.save(folder)
    return prepared


def train(
    config: Config,
    out: Path,
    *,
    overwrite: bool = False,
    start_from: Path | None = None,
    display: Display | None = None,
    prepared: Prepared | None = None,
    observers: Sequence[Observer] = (),
) -> Outcome:
    """Train a new model. With `start_from`, it begins with the tensors of a trained run's model that fit.

    The new run is staged first: an overwritten run is deleted only when the new one is on disk. With `prepared`, made
    by `sixfold.prepare` for the same section `data`, no text is read. `observers` are called after steps and
    validations. It may be called repeatedly in one process: torch's random generators and settings are restored.
    """
    run, given, started = Run(out), config, time.monotonic()
    with reported_once():
        config, outline, before = _check(run, config, start_from)
    with _at_work(run, config, display) as (processes, display):
        if before is not None:
            tell_inherited(given, config, before, display)
        if processes.first:
            if run.proved() and not overwrite:
                raise ValueError(f"{out} holds a run; give --resume {out} to continue it, or --overwrite to replace it")
            _check_files(run, config)
            tokenizers = None if before is None else Tokenizers.load(before.directory)
            made = _prepare(run.draft, config, display, tokenizers, prepared, started=started)
            made.tokenizers.save(run.draft.directory)
            if made.labels:
                write_labels(run.draft.directory, made.labels)
        opened = _open(run.draft, processes)
        planned = complete(config.with_classes(len(opened.labels)), opened, processes, trained=before is not None)
        config = planned.config
        model = build_model(config, opened, processes, like=outline)
        for line in plan_lines(planned, sum(parameter.numel() for parameter in model.parameters())):
            display.say(line)
        for line in advice(planned):
            display.say(line)
        origin = {} if before is None else take(model, config, before, display, opened.labels)
        origin["plan"] = [list(choice) for choice in planned.choices]
        parts: dict[str, Any] = {"log": Log(run), "display": display, "observers": [Board(run), *observers]}
        trainer = make_trainer(run.draft, config, opened, processes, model=model, started=started, **parts)
        trainer.validation.rehearse(trainer.store.candidate)
        _begin(run, trainer, config, opened, origin)
        return _go(trainer, display)


def _check(run: Run, config: Config, start_from: Path | None) -> tuple[Config, Model, Run | None]:
    """Check all that can be checked before reading text. → the configuration, the model on `meta`, the run of --from"""
    before = None if start_from is None else Run(start_from).need()
    if before is not None and os.path.realpath(before.directory) == os.path.realpath(run.directory):
        raise ValueError(f"--from {start_from} is also the directory to write to; give another --out")
    config, outline = check(config, before)
    run.need_room()
    return with_whole_paths(config), outline, before


def _check_files(run: Run, config: Config) -> None:
    """Raise a ValueError if a file of the text has a name that is not UTF-8, or lies in the run to be replaced."""
    files = data_files(config.data, task_of(config).form)
    for file in files:
        if as_text(str(file)) != str(file):
            raise ValueError(f"the name of {as_text(str(file))} is not UTF-8; rename it, or its directory")
    if run.proved():
        run.need_outside(files)


def resume(
    out: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    allow_changed_data: bool = False,
    display: Display | None = None,
    observers: Sequence[Observer] = (),
) -> Outcome:
    """Continue a run from its last checkpoint."""
    run = Run(out)
    with reported_once():
        run.need_proved()
        for key in settings or {}:
            if key not in MAY_CHANGE:
                raise ValueError(f"--{key} can't change when a run is resumed; only {', '.join(MAY_CHANGE)} can")
        config = settled(run.read_config(settings))
    with _at_work(run, config, display) as (processes, display):
        saved = _last_checkpoint(run, processes, display)
        if processes.first:
            need_steps(config, saved)
            about = _provide_data(run, config, saved, display, allow_changed_data)
            if words := surroundings(config, saved, about, processes):
                display.say(words)
        all_observers = [Board(run), *observers]
        opened = _open(run, processes)
        if processes.first and opened.labels:
            _restore_labels(run, opened.labels)
        trainer = make_trainer(run, config, opened, processes, log=Log(run), display=display, observers=all_observers)
        trainer.restore(saved)
        if processes.first and settings:
            run.begin(config, about)
        return _go(trainer, display)


@contextmanager
def _at_work(run: Run, config: Config, display: Display | None) -> Iterator[tuple[Processes, Display]]:
    """Join the process group, set determinism as configured, and lock the run."""
    with left_as_it_was(), together(config.training.device) as processes:
        be_deterministic(config.training.deterministic)
        shown = (display or Display()) if processes.first else Quiet()
        try:
            with _held(run) if processes.first else nullcontext():
                yield processes, shown
        except OSError as error:
            _say_what_is_safe(error, run)
            raise
        finally:
            shown.close()


def _say_what_is_safe(error: OSError, run: Run) -> None:
    """Add to an error, such as a full disk, the step of the last checkpoint and how to resume from it."""
    for directory in checkpoint.checkpoints_in(run.training)[:1] if run.exists() else ():
        step, again = checkpoint.step_of(directory), to_resume(run.directory)
        error.add_note(f"step {step:,} is saved: when the problem is fixed, {again} continues from there")


@contextmanager
def _held(run: Run) -> Iterator[None]:
    """Lock the run and remove staged files of killed processes; remove a new directory if no run was created in it."""
    new = not run.directory.exists()
    with run.locked():
        try:
            run.complete()
            sweep(run.directory)
            sweep(run.training)
            yield
        finally:
            with suppress(OSError):  # the first error is more important
                sweep(run.directory)
                if new and not run.exists():
                    run.remove()


def _prepare(
    run: Run,
    config: Config,
    display: Display,
    tokenizers: Tokenizers | None,
    prepared: Prepared | None = None,
    labels: Sequence[str] = (),
    started: float = math.inf,
) -> Prepared:
    """Tokenise the text, or copy prepared text, and display its report. The run's minutes count from `started`."""
    if prepared is not None:
        made = copy_prepared(prepared, run.data, config.data, task_of(config).form, tokenizers)
    else:
        progress = warning_of_slow_preparation(display.progress, display.say, config.training.minutes, started)
        made = prepare_text(config.data, task_of(config).form, run.data, tokenizers, progress, labels)
    for line in made.report.lines():
        display.say(line)
    return made


def _open(run: Run, processes: Processes) -> Prepared:
    """The text that the first process has prepared."""
    processes.wait()
    return open_prepared(run.data, Tokenizers.load(run.directory))


def _begin(run: Run, trainer: Trainer, config: Config, prepared: Prepared, origin: Mapping[str, Any]) -> None:
    """Write the checkpoint of step 0 into the draft, then replace an older run by the draft."""
    trainer.save()
    if trainer.processes.first:
        run.draft.begin(config, {"hashes": prepared.hashes, "report": prepared.report.json(), **origin})
        run.replace_by_draft()
    trainer.processes.wait()
    trainer.store.move(run)


def _provide_data(
    run: Run, config: Config, saved: checkpoint.Checkpoint, display: Display, allow_changed: bool
) -> dict[str, Any]:
    """Make sure that data/ holds the text of run.json, or changed text if that is allowed. → the content of run.json

    Damaged prepared text is prepared again. Only then must the original files still exist.
    """
    about = read_notes(run, saved, display)
    then, now = about["hashes"], _hashes(config, display)
    different = [] if now is None else [name for name in {**then, **now} if then.get(name) != now.get(name)]
    if different and not allow_changed:
        raise ValueError(
            f"the data have changed since this run began: {', '.join(different)}; --allow-changed-data accepts them"
        )
    need_same_config(config, saved, run, now)
    tokenizers = Tokenizers.load(run.directory)
    need_same_tokenizers(tokenizers, saved, run)
    problem = _problem(run, tokenizers, now or then)
    if problem is not None:
        if now is None:
            raise ValueError(f"{problem}; for that, the data files must exist unchanged")
        display.say(problem)
        labels = _labels_of(run, tokenizers) if task_of(config).form.has_labels else ()
        _prepare(run, config, display, tokenizers, labels=labels)
    if different or "report" not in about:
        made = open_prepared(run.data, tokenizers)
        about = {**about, "hashes": made.hashes, "report": made.report.json()}
        run.begin(config, about)
    return about


def _labels_of(run: Run, tokenizers: Tokenizers) -> Sequence[str]:
    """The labels that a run's model knows: changed text must keep their order, which is that of the classes."""
    try:
        return read_labels(run.directory)
    except ValueError:
        with suppress(ValueError):
            return open_prepared(run.data, tokenizers).labels
        raise


def _restore_labels(run: Run, labels: Sequence[str]) -> None:
    """Write labels.json again if it is lost or damaged."""
    try:
        read_labels(run.directory)
    except ValueError:
        write_labels(run.directory, labels)


def _hashes(config: Config, display: Display) -> dict[str, str] | None:
    """The hashes of the current data files; None if they can't be read."""
    try:
        return data_hashes(config.data, task_of(config).form)
    except (OSError, ValueError) as error:
        display.say(f"the data files can't be compared ({error}); the run continues with its prepared text")
        return None


def _problem(run: Run, tokenizers: Tokenizers, hashes: Mapping[str, str]) -> str | None:
    """Why the text must be prepared again; None if that is not needed."""
    try:
        found = open_prepared(run.data, tokenizers).hashes
    except ValueError as error:
        return f"the text must be prepared again: {error}"
    return None if found == hashes else f"the text must be prepared again: {run.data} was made from other files"


def _last_checkpoint(run: Run, processes: Processes, display: Display) -> checkpoint.Checkpoint:
    """The last intact checkpoint, as found by the first process."""
    found = _intact_checkpoint(run, display) if processes.first else None
    name = processes.agree(found and found.path.name)
    return found or checkpoint.trust(run.training / name)


def _intact_checkpoint(run: Run, display: Display) -> checkpoint.Checkpoint:
    damaged: list[checkpoint.DamagedError] = []
    for found in checkpoint.latest(run.training):
        if isinstance(found, checkpoint.Checkpoint):
            for damage in damaged:
                display.say(f"{damage}; {found.path.name} is used")
            return found
        damaged.append(found)
    what = "; ".join(str(damage) for damage in damaged) or f"{run.training} is empty"
    raise ValueError(f"there is no checkpoint to resume from: {what}; train --overwrite starts again")


def _go(trainer: Trainer, display: Display) -> Outcome:
    try:
        reason = trainer.train()
    finally:
        for observer in trainer.parts.observers:
            observer.close()
    progress = trainer.progress
    if trainer.validation.possible and progress.best is None:
        display.say(f"{NO_BEST}, of step {progress.step:,}")
    received = trainer.signals.number or signal.SIGTERM  # the number is None if another process received the signal
    return Outcome(
        reason.text,
        trainer.store.run.directory,
        finished=not reason.asked and not trainer.guard.gave_up,
        signal=received if reason.asked else None,
        step=progress.step,
        best_step=trainer.best_step(),
        scores=dict(trainer.scores),
        best=progress.best,
    )
