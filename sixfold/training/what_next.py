"""Commands for a person to type: how to go on with a run, and how to use it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.spec.registry import imported_files

if TYPE_CHECKING:
    from sixfold.training.runner import Outcome

_USE = {"encoder_decoder": "translate", "decoder_only": "generate"}  # the verb by which a model writes


def to_resume(run: Path) -> str:
    """The command that goes on with a run."""
    return _command("train", "--resume", str(run))


def what_next(outcome: Outcome) -> list[str]:
    """Commands that make sense after a training that ended so."""
    run = str(outcome.run)
    look = [_command("info", run), shlex.join(["sixfold", "plot", run])]
    if outcome.signal is not None:
        return [f"{to_resume(outcome.run)}    to go on", *look, *_use(run)]
    return [*look, *_use(run)] if outcome.finished else look  # weights of a training that gave up are good for nothing


def _use(run: str) -> list[str]:
    """How to put the model to work, if there is one and it writes text."""
    try:
        kind, data = model_files.skeleton(Path(run)).kind, Run(run).read_config().data
    except ValueError:
        return []
    if kind not in _USE:
        return []
    part = [[]] if data.test is not None else [["--part", "valid"]] if data.valid is not None else []
    return [_command(_USE[kind], run), *(_command("score", run, *options) for options in part)]


def _command(*words: str) -> str:
    """With the files that this process imported: whoever reads the run needs them, too."""
    return shlex.join(["sixfold", *words, *(word for file in imported_files() for word in ("--import", file))])
