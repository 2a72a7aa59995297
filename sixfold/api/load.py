"""`sixfold.load`: opens the directory of a run, and returns the object that uses its model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sixfold.config.files import read_config
from sixfold.config.schema import Config
from sixfold.core.device import choose_device
from sixfold.decoding.session import RunOrigin
from sixfold.models.model import Model
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.spec.registry import import_file
from sixfold.tasks.task import Task, task_of, usual_task
from sixfold.text.labels import read_labels
from sixfold.text.tokenizer import Tokenizers
from sixfold.training.what_next import to_resume


class OpenedRun(NamedTuple):
    """The contents of a run directory."""

    model: Model
    tokenizers: Tokenizers
    config: Config
    task: Task


def load(
    run: str | Path | Sequence[str | Path],
    *,
    device: str = "auto",
    imports: Sequence[str | Path] = (),
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """A Translator, a Generator (of a language model) or a Classifier, which owns its models: they are frozen.

    Several runs with one vocabulary become an ensemble.

    >>> sixfold.load("runs/mine").translate(["a line"], beam_size=4)
    >>> sixfold.load(["runs/one", "runs/two"]).translate(["a line"])

    `imports` are Python files that register modifications of your own; `settings` are keys of the configuration,
    such as {"decoding.beam_size": 4}, which replace those of the (first) run.
    """
    runs = [run] if isinstance(run, str | Path) else list(run)
    if not runs:
        raise ValueError("load takes the directory of a run, or several, got none")
    for file in imports:
        import_file(file)
    opened = [open_run(each, device, settings) for each in runs]
    _need_one_vocabulary(runs, opened)
    origin = RunOrigin(tuple(map(str, runs)), device, tuple(map(str, imports)))
    models, (_, tokenizers, config, task) = [each.model.requires_grad_(False) for each in opened], opened[0]
    if task.user is None:
        raise ValueError(f"{runs[0]} was trained for {task.name}, and writes no text")
    data = config.data if Run(runs[0]).exists() else None
    labels = read_labels(Path(runs[0])) if task.form.has_labels else ()
    return task.user(models, tokenizers, config.decoding, labels=labels, data=data, origin=origin)


def open_run(directory: str | Path, device: str = "auto", settings: Mapping[str, Any] | None = None) -> OpenedRun:
    """The model, the tokenizers and the configuration of a run, or of a model directory with tokenizers."""
    run = Run(directory)
    if not run.directory.exists():
        raise ValueError(f"there is no directory {run.directory}")
    if run.directory.is_file():
        raise ValueError(f"{run.directory} is a file; give the directory of a run")
    if run.exists() and not os.path.lexists(run.directory / model_files.DESCRIPTION):
        raise ValueError(
            f"{run.directory} has no model yet: its training has not reached a first validation "
            f"(to continue it: {to_resume(run.directory)})"
        )
    model = model_files.load(run.directory, device=choose_device(device))
    settings = {**_usual(model, settings or {}), **(settings or {})}
    config = run.read_config(settings) if run.exists() else read_config(None, settings)
    task = task_of(config) if run.exists() else usual_task(model.kind, model.sizes.classes)
    return OpenedRun(model, Tokenizers.load(run.directory), config, task)


def _usual(model: Model, settings: Mapping[str, Any]) -> dict[str, str]:
    """A language model samples by default, because its likeliest text soon repeats itself."""
    if model.reads_source or not model.writes_text or {"decoding.sample", "decoding.beam_size"} & settings.keys():
        return {}
    return {"decoding.sample": "true"}


def _need_one_vocabulary(runs: Sequence[str | Path], opened: Sequence[OpenedRun]) -> None:
    first = opened[0]
    for run, other in zip(runs[1:], opened[1:], strict=True):
        if other.task.verb != first.task.verb:
            raise ValueError(f"{runs[0]} was trained for {first.task.name}, {run} for {other.task.name}")
        for side, mine, theirs in zip(("source", "target"), first.tokenizers, other.tokenizers, strict=True):
            if mine.fingerprint != theirs.fingerprint:
                raise ValueError(
                    f"{run} has another {side} vocabulary than {runs[0]}: an ensemble needs runs with one tokenizer "
                    f"(such as `sixfold train --from`, or other seeds on the same text)"
                )
