"""How a run begins, and how it goes on: from a configuration or a run directory to a trainer that trains."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sixfold import store
from sixfold.config import Config, read_config
from sixfold.files import sweep
from sixfold.run import Run
from sixfold.text.corpus import Prepared, data_hashes, open_prepared, prepare
from sixfold.text.tokenizer import Tokenizers
from sixfold.training import checkpoint
from sixfold.training.device import be_deterministic
from sixfold.training.display import Display, Quiet
from sixfold.training.loop import Trainer
from sixfold.training.processes import Processes, together
from sixfold.training.records import Log

_PROBE = 20  # steps that say how many fit into the minutes given
_MAY_CHANGE = ("training.steps", "training.patience", "training.log_every", "training.keep")


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
    """Train a model from the beginning. With `start_from`, its beginning is a trained run's model and tokenizer."""
    run, before = Run(out), None if start_from is None else Run(start_from).need()
    _check(config)
    run.need_room()
    config = config.with_whole_paths()
    with _at_work(run, config, display) as (processes, display):
        if processes.first:
            if run.exists() and not overwrite:
                raise ValueError(f"{out} holds a run; go on with --resume {out}, or say --overwrite to begin anew")
            tokenizers = None if before is None else Tokenizers.load(before.directory)
            made = _prepare(run, config, display, tokenizers)
            run.forget()
            made.tokenizers.save(run.directory)
        prepared = _open(run, processes)
        config = _resolve(run, config, prepared, processes, display)
        return _go(_new(run, config, prepared, processes, display, before))


def resume(
    out: Path,
    settings: Mapping[str, str] | None = None,
    *,
    allow_changed_data: bool = False,
    display: Display | None = None,
) -> Outcome:
    """Go on with a run, from its last checkpoint."""
    run = Run(out).need()
    for key in settings or {}:
        if key not in _MAY_CHANGE:
            raise ValueError(f"--{key} can't change when a run is resumed; only {', '.join(_MAY_CHANGE)} can")
    config = read_config(run.config, settings)
    with _at_work(run, config, display) as (processes, display):
        changed = processes.agree(_changed(run, config, display) if processes.first else None)
        if changed and not allow_changed_data:
            raise ValueError(f"the data have changed since this run began: {changed}; --allow-changed-data takes them")
        if processes.first and changed:
            _prepare(run, config, display, Tokenizers.load(run.directory))
        prepared = _open(run, processes)
        if processes.first and (settings or changed):
            run.begin(config, {**run.read_about(), "hashes": prepared.hashes})
        return _go(_restored(run, config, prepared, processes, display, new_data=bool(changed)))


def _check(config: Config) -> None:
    if config.data.train is None:
        raise ValueError("what should it learn from? Give --data.train, or a recipe that says it")
    if config.model.classes:
        raise ValueError(f"model.classes is {config.model.classes}, but `train` can't teach classes yet; it must be 0")


@contextmanager
def _at_work(run: Run, config: Config, display: Display | None) -> Iterator[tuple[Processes, Display]]:
    """Together with the other processes, the run locked, deterministic if wished; a new directory goes if it fails."""
    new = not run.directory.exists()
    be_deterministic(config.training.deterministic)
    with together(config.training.device) as processes:
        shown = (display or Display()) if processes.first else Quiet()
        try:
            if not processes.first:
                yield processes, shown
                return
            with run.locked():
                sweep(run.directory)
                sweep(run.training)
                yield processes, shown
        finally:
            shown.close()
            if processes.first and new and not run.exists():
                _remove_traces(run)


def _remove_traces(run: Run) -> None:
    (run.directory / "lock").unlink(missing_ok=True)
    if run.directory.exists() and not any(run.directory.iterdir()):
        run.directory.rmdir()


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


def _new(
    run: Run, config: Config, prepared: Prepared, processes: Processes, display: Display, before: Run | None
) -> Trainer:
    """A trainer at its first step, which is saved: from here on the directory is a run."""
    trainer = Trainer(run, config, prepared, processes, display)
    if before is not None:
        _adopt(trainer, before)
    if processes.first:
        _begin(run, config, prepared, before)
    trainer.save()
    return trainer


def _restored(
    run: Run, config: Config, prepared: Prepared, processes: Processes, display: Display, new_data: bool
) -> Trainer:
    """A trainer where the last checkpoint was made."""
    trainer = Trainer(run, config, prepared, processes, display)
    saved = _last_checkpoint(run, processes, display)
    if saved is None:
        trainer.log.cut(0)
        trainer.save()
    else:
        trainer.restore(saved, new_data=new_data)
    return trainer


def _begin(run: Run, config: Config, prepared: Prepared, before: Run | None) -> None:
    """Write down what is to be done."""
    about: dict[str, Any] = {"hashes": prepared.hashes, "report": prepared.report.json()}
    run.begin(config, about if before is None else {**about, "from": str(before.directory.resolve())})


def _adopt(trainer: Trainer, before: Run) -> None:
    """Take the weights of a trained model, which must have the same shape."""
    old, new = store.load(before.directory), trainer.model
    for key, size in vars(old.sizes).items():
        if key != "dropout" and size != getattr(new.sizes, key):
            raise ValueError(f"--from {before.directory}: its {key} is {size}, here {getattr(new.sizes, key)}")
    if old.assembly.modifications != new.assembly.modifications:
        mine, theirs = (_names(m) for m in (new, old))
        raise ValueError(f"--from {before.directory}: its modifications are {theirs}, here {mine}")
    checkpoint.load_weights(new, old.state_dict())


def _names(model: Any) -> str:
    return ", ".join(chosen.name for chosen in model.assembly.modifications) or "none"


def _changed(run: Run, config: Config, display: Display) -> str | None:
    """What is different about the data files now. Files that are gone are no matter: the run has what it needs."""
    then = run.read_about().get("hashes", {})
    try:
        now = data_hashes(config)
    except (OSError, ValueError) as error:
        display.say(f"the data files can't be compared ({error}); the run goes on with what it has prepared")
        return None
    different = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    return ", ".join(different) or None


def _last_checkpoint(run: Run, processes: Processes, display: Display) -> checkpoint.Checkpoint | None:
    """The last that is whole, which is for the first process to say."""
    found = _whole_checkpoint(run, display) if processes.first else None
    name = processes.agree(found and found.path.name)
    return found or (name and checkpoint.trust(run.training / name))


def _whole_checkpoint(run: Run, display: Display) -> checkpoint.Checkpoint | None:
    for found in checkpoint.latest(run.training):
        if isinstance(found, checkpoint.Checkpoint):
            return found
        display.say(f"{found}; the one before is used")
    return None


def _go(trainer: Trainer) -> Outcome:
    reason = trainer.train()
    number = (trainer.signals.number or signal.SIGTERM) if reason.asked else None  # another process may have got it
    finished = not reason.asked and not trainer.guard.gave_up
    return Outcome(reason.text, trainer.run.directory, finished=finished, signal=number)
