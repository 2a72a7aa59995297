"""Commands to suggest to the user: how to resume a run, and how to use it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.spec.registry import files_of
from sixfold.tasks.task import task_of

if TYPE_CHECKING:
    from sixfold.training.runner import Outcome


def to_resume(run: Path) -> str:
    """The command that resumes a run."""
    return _command("train", "--resume", str(run), *_imports(run))


def about_signal(signal: str, again: bool, run: Path, step: int, saved: int) -> str:
    """The effect of a signal on a run at this step, whose last checkpoint is of step `saved`."""
    if not again:
        return (
            f"{signal}: the run stops after this step and saves a checkpoint (a second {signal} stops it at once, "
            f"without saving); resume with: {to_resume(run)}"
        )
    return (
        f"{signal} again: the run stops at step {step:,} and loses all steps since the checkpoint of step {saved:,}; "
        f"resume with: {to_resume(run)}"
    )


def what_next(outcome: Outcome) -> list[str]:
    """Commands that make sense after this outcome."""
    run = str(outcome.run)
    use = _use(outcome.run, scored=bool(outcome.scores))
    look = [_command("info", run, *_imports(outcome.run)), _command("plot", run)]
    if outcome.signal is not None:
        return [f"{to_resume(outcome.run)}    to continue", *look, *use]
    return [*look, *use] if outcome.finished else look  # the model of a diverged training is useless


def _use(run: Path, scored: bool) -> list[str]:
    """Commands that use and score the model, if its task has a verb. `scored`: it has been validated."""
    try:
        model_files.skeleton(run)
        config = Run(run).read_config()
        task, data = task_of(config), config.data
    except ValueError:
        return []
    if not task.verb:
        return []
    imports = _imports(run)
    score = _command("score", str(run), *([] if data.test is not None else ["--part", "valid"]), *imports)
    held_out = data.test is not None or data.valid is not None or scored
    return [_command(task.verb, str(run), *imports), *([score] if held_out else [])]


def _imports(run: Path) -> list[str]:
    """--import options for the user's files that register the run's modifications and task."""
    try:
        config = Run(run).read_config()
        files = dict.fromkeys([*files_of(config.model.modifications), *task_of(config).imported_from()])
    except ValueError:  # there is no configuration
        return []
    return [word for file in files for word in ("--import", file)]


def _command(*words: str) -> str:
    return shlex.join(["sixfold", *words])
