"""How a run begins, and how it goes on: from a configuration or a run directory to a trainer that trains."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sixfold.config.schema import Config
from sixfold.core.device import be_deterministic
from sixfold.disk.atomic import sweep
from sixfold.runs.run import Run, as_text
from sixfold.text.corpus import Prepared, data_files, data_hashes, open_prepared, prepare
from sixfold.text.tokenizer import Tokenizers
from sixfold.training import checkpoint
from sixfold.training.display import NO_BEST, Display, Quiet
from sixfold.training.log import Log
from sixfold.training.preflight import check
from sixfold.training.processes import Processes, said_once, together
from sixfold.training.resume_checks import (
    MAY_CHANGE,
    need_same_config,
    need_same_tokenizers,
    need_steps,
    read_notes,
    surroundings,
)
from sixfold.training.start_from import take, tell_inherited
from sixfold.training.trainer import Trainer
from sixfold.training.what_next import to_resume

_PROBE = 20  # steps that say how many fit into the minutes given


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    reason: str
    run: Path
    finished: bool  # nothing is left to do
    signal: int | None = None  # the one that asked it to stop


def train(
    config: Config,
    out: Path,
    *,
    overwrite: bool = False,
    start_from: Path | None = None,
    display: Display | None = None,
) -> Outcome:
    """Train a model from the beginning. With `start_from`, it begins with what fits of a trained run's model.

    All is made ready aside: a run that is overwritten goes when the new one is on disk, and not before.
    """
    run, given = Run(out), config
    with said_once():
        config, before = _check(run, config, start_from)
    with _at_work(run, config, display) as (processes, display):
        if before is not None:
            tell_inherited(given, config, before, display)
        if processes.first:
            if run.proved() and not overwrite:
                raise ValueError(f"{out} holds a run; go on with --resume {out}, or say --overwrite to begin anew")
            _check_files(run, config)
            tokenizers = None if before is None else Tokenizers.load(before.directory)
            _prepare(run.draft, config, display, tokenizers).tokenizers.save(run.draft.directory)
        prepared = _open(run.draft, processes)
        config = _resolve(run.draft, config, prepared, processes, display)
        trainer = Trainer(run.draft, config, prepared, processes, display)
        origin = {} if before is None else take(trainer.model, config, before, display)
        trainer.validation.rehearse(trainer.candidate)
        _begin(run, trainer, prepared, origin)
        return _go(trainer)


def _check(run: Run, config: Config, start_from: Path | None) -> tuple[Config, Run | None]:
    """The configuration, and the run to begin with, if all that can be known beforehand is in order."""
    before = None if start_from is None else Run(start_from).need()
    if before is not None and os.path.realpath(before.directory) == os.path.realpath(run.directory):
        raise ValueError(f"--from {start_from} is the directory to write to, and can't be both; give another --out")
    config = check(config, before).with_whole_paths()
    run.need_room()
    return config, before


def _check_files(run: Run, config: Config) -> None:
    """The text must outlive the older run, and its files have names that can be written down."""
    files = data_files(config)
    for file in files:
        if as_text(str(file)) != str(file):
            raise ValueError(f"the name of {as_text(str(file))} is no UTF-8; give it, or its directory, another")
    if run.proved():
        run.need_outside(files)


def resume(
    out: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    allow_changed_data: bool = False,
    display: Display | None = None,
) -> Outcome:
    """Go on with a run, from its last checkpoint."""
    run = Run(out)
    with said_once():
        run.need_proved()
        for key in settings or {}:
            if key not in MAY_CHANGE:
                raise ValueError(f"--{key} can't change when a run is resumed; only {', '.join(MAY_CHANGE)} can")
        config = run.read_config(settings)
    with _at_work(run, config, display) as (processes, display):
        saved = _last_checkpoint(run, processes, display)
        if processes.first:
            need_steps(config, saved)
            about = _provide_data(run, config, saved, display, allow_changed_data)
            if words := surroundings(config, saved, about, processes):
                display.say(words)
        trainer = Trainer(run, config, _open(run, processes), processes, display)
        trainer.restore(saved)
        if processes.first and settings:
            run.begin(config, about)
        return _go(trainer)


@contextmanager
def _at_work(run: Run, config: Config, display: Display | None) -> Iterator[tuple[Processes, Display]]:
    """Together with the other processes, the run locked, deterministic if wished."""
    be_deterministic(config.training.deterministic)
    with together(config.training.device) as processes:
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
    """Let an error such as a full disk also say what is not lost."""
    for directory in checkpoint.checkpoints_in(run.training)[:1] if run.exists() else ():
        step, again = checkpoint.step_of(directory), to_resume(run.directory)
        error.add_note(f"all is safe up to step {step:,}: when this is mended, {again} goes on from there")


@contextmanager
def _held(run: Run) -> Iterator[None]:
    """The run locked, and rid of what was never finished; a new directory that becomes no run goes again."""
    new = not run.directory.exists()
    with run.locked():
        try:
            run.complete()
            sweep(run.directory)
            sweep(run.training)
            yield
        finally:
            with suppress(OSError):  # whatever went wrong is more important
                sweep(run.directory)
                if new and not run.exists():
                    run.remove()


def _prepare(run: Run, config: Config, display: Display, tokenizers: Tokenizers | None) -> Prepared:
    """Tokenise the text, and say what there is to say about it."""
    made = prepare(config, run.data, tokenizers, display.progress)
    for line in made.report.lines():
        display.say(line)
    return made


def _open(run: Run, processes: Processes) -> Prepared:
    """What the first process has prepared."""
    processes.wait()
    return open_prepared(run.data, Tokenizers.load(run.directory))


def _resolve(run: Run, config: Config, prepared: Prepared, processes: Processes, display: Display) -> Config:
    """The configuration with a number of steps, in place of minutes."""
    training = config.training
    if training.minutes is None:
        return config.with_steps(training.steps or 20_000)
    trainer = Trainer(run, config.with_steps(_PROBE), prepared, processes, Quiet())
    trainer.model.train()
    trainer.log = Log(run, Quiet(), active=False)
    times = []
    for _ in range(_PROBE):
        started = time.perf_counter()
        trainer.step()
        times.append(time.perf_counter() - started)
    seconds = processes.agree(sum(sorted(times)[: _PROBE - 2]) / (_PROBE - 2))  # the slowest had to warm up
    steps = max(1, int(training.minutes * 60 / seconds))
    display.say(f"{training.minutes:g} minutes are {steps:,} steps of {1000 * seconds:.0f} ms")
    return config.with_steps(steps)


def _begin(run: Run, trainer: Trainer, prepared: Prepared, origin: Mapping[str, Any]) -> None:
    """Save the first step beside all else that is ready; then take the place of what was there, in one move."""
    trainer.save()
    if trainer.processes.first:
        about = {"hashes": prepared.hashes, "report": prepared.report.json(), **origin}
        run.draft.begin(trainer.config, about)
        run.replace_by_draft()
    trainer.processes.wait()
    trainer.move(run)


def _provide_data(
    run: Run, config: Config, saved: checkpoint.Checkpoint, display: Display, allow_changed: bool
) -> dict[str, Any]:
    """See that data/ holds the text that run.json speaks of, or other text if that is allowed. → what run.json says

    It can be prepared again as it was. Files that are gone are no matter as long as nobody has to.
    """
    about = read_notes(run, saved, display)
    then, now = about["hashes"], _hashes(config, display)
    different = [] if now is None else [name for name in {**then, **now} if then.get(name) != now.get(name)]
    if different and not allow_changed:
        raise ValueError(
            f"the data have changed since this run began: {', '.join(different)}; --allow-changed-data takes them"
        )
    need_same_config(config, saved, run, now)
    tokenizers = Tokenizers.load(run.directory)
    need_same_tokenizers(tokenizers, saved, run)
    problem = _problem(run, tokenizers, now or then)
    if problem is not None:
        if now is None:
            raise ValueError(f"{problem}; for that, the data files must be there as they were")
        display.say(problem)
        _prepare(run, config, display, tokenizers)
    if different or "report" not in about:
        made = open_prepared(run.data, tokenizers)
        about = {**about, "hashes": made.hashes, "report": made.report.json()}
        run.begin(config, about)
    return about


def _hashes(config: Config, display: Display) -> dict[str, str] | None:
    """Of the data files as they are now, if they are there."""
    try:
        return data_hashes(config)
    except (OSError, ValueError) as error:
        display.say(f"the data files can't be compared ({error}); the run goes on with what it has prepared")
        return None


def _problem(run: Run, tokenizers: Tokenizers, hashes: Mapping[str, str]) -> str | None:
    """Why the text must be prepared again."""
    try:
        found = open_prepared(run.data, tokenizers).hashes
    except ValueError as error:
        return f"the text must be prepared again: {error}"
    return None if found == hashes else f"the text must be prepared again: {run.data} was made of other files"


def _last_checkpoint(run: Run, processes: Processes, display: Display) -> checkpoint.Checkpoint:
    """The last that is whole, which is for the first process to say."""
    found = _whole_checkpoint(run, display) if processes.first else None
    name = processes.agree(found and found.path.name)
    return found or checkpoint.trust(run.training / name)


def _whole_checkpoint(run: Run, display: Display) -> checkpoint.Checkpoint:
    damaged: list[checkpoint.DamagedError] = []
    for found in checkpoint.latest(run.training):
        if isinstance(found, checkpoint.Checkpoint):
            for damage in damaged:
                display.say(f"{damage}; {found.path.name} is used")
            return found
        damaged.append(found)
    what = "; ".join(str(damage) for damage in damaged) or f"{run.training} holds none"
    raise ValueError(f"there is no checkpoint to go on from: {what}; train --overwrite begins anew")


def _go(trainer: Trainer) -> Outcome:
    reason = trainer.train()
    if trainer.validation.possible and trainer.progress.best is None:
        trainer.display.say(f"{NO_BEST}, of step {trainer.progress.step:,}")
    number = (trainer.signals.number or signal.SIGTERM) if reason.asked else None  # another process may have got it
    finished = not reason.asked and not trainer.guard.gave_up
    return Outcome(reason.text, trainer.run.directory, finished=finished, signal=number)
