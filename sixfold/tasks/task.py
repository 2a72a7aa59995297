"""A task is a value: how text becomes batches, what is minimised, what is measured, how a trained model is asked.

    task: masked_words                      in a configuration,
    task: {name: masked_words, masked: 0.3} with options,
    --task masked_words:masked=0.3          on the command line

Each file of this package registers one; a file given by --import may register another in the same way.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from sixfold.core.names import did_you_mean
from sixfold.core.quote import quoted
from sixfold.spec.options import pairs, read_value

if TYPE_CHECKING:
    from sixfold.config.schema import Config
    from sixfold.core.batch import Batch, Term
    from sixfold.text.arrays import Examples
    from sixfold.text.bucketing import Lengths
    from sixfold.text.forms import TextForm
    from sixfold.text.rows import Rows

LOSSES = ("loss", "perplexity")  # which every task has


@dataclass(frozen=True)
class NoOptions:
    """A task that can't be set differently."""


@dataclass(frozen=True)
class Task:
    """What a model is trained for."""

    name: str
    about: str  # one line for a list
    kinds: tuple[str, ...]  # of the models that can do it, the usual one first
    verb: str  # which asks a trained model, such as "translate"; "" if there is none yet
    form: TextForm  # files → rows on disk
    lengths: Callable[[Examples], Lengths]  # what each row costs
    collate: Callable[[Rows, Any], Batch]  # (rows, options) → a batch with its counts: a pure function
    losses: Callable[..., dict[str, Term]]  # (model, batch, smoothing=, recompute=) → what is minimised
    metrics: tuple[str, ...]  # besides the loss; the first says which weights are best
    user: Callable[..., Any] | None = None  # (models, tokenizers, decoding, labels=, data=, origin=) → who asks
    answers: Callable[..., list[str]] | None = None  # (user, sources, stop) → the texts that the metrics score
    rehearse: Callable[..., None] | None = None  # (user, references): raises a ValueError where it can't be asked so
    before: Callable[..., Batch] | None = None  # (model, batch, key) → a batch, without gradient, before the forward
    options: Any = NoOptions()  # a frozen dataclass: what only this task understands, with defaults
    main: str = "words"  # the term that is the loss, divided by the count of this name

    def batch(self, rows: Rows) -> Batch:
        return self.collate(rows, self.options)

    @property
    def known_metrics(self) -> tuple[str, ...]:
        return (*LOSSES, *self.metrics)

    def imported_from(self) -> list[str]:
        """The user's file that registered it, where it is not one of sixfold's own."""
        module = sys.modules.get(self.collate.__module__)
        return [str(module.__file__)] if module is not None and module.__name__.startswith("sixfold_import_") else []

    def said(self) -> dict[str, Any]:
        """For a configuration: everything is said."""
        return {"name": self.name, **asdict(self.options)}

    def with_options(self, values: Mapping[str, Any]) -> Task:
        """The same task, set differently; values may be texts."""
        hints = typing.get_type_hints(type(self.options))
        known = [option.name for option in fields(self.options)]
        for key in values:
            if key not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise ValueError(f"task {self.name!r} has no option {key!r}{did_you_mean(key, known)}; {has}")
        what = f"of task {self.name!r}"
        read = {key: read_value(value, hints[key], f"option {key!r} {what}") for key, value in values.items()}
        return replace(self, options=replace(self.options, **read))


_registered: dict[str, Task] = {}
_USUAL = {"encoder_decoder": "translation", "decoder_only": "language_model", "encoder_only": "masked_words"}


def register(task: Task) -> Task:
    """Make a task known by its name. A later one of the same name takes its place."""
    _registered[task.name] = task
    return task


def all_tasks() -> dict[str, Task]:
    """Every task by name: those of this package, and those that were imported."""
    for name in _own_names():
        importlib.import_module(f"sixfold.tasks.{name}")
    return dict(_registered)


def _own_names() -> list[str]:
    """The tasks of this package, each in a file of its name."""
    package = importlib.import_module("sixfold.tasks")
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return [name for name in names if not name.startswith("_") and name != "task"]


def find_task(name: str) -> Task:
    if name not in _registered and name in _own_names():  # so that one task does not wait for the others
        importlib.import_module(f"sixfold.tasks.{name}")
    known = _registered if name in _registered else all_tasks()
    if name not in known:
        raise ValueError(
            f"there is no task {quoted(name)}{did_you_mean(name, known)}; there are {', '.join(known)}, "
            f"and one of your own must be imported first (--import FILE)"
        )
    return known[name]


def usual_task(kind: str) -> Task:
    """What a model of this kind is trained for, where nothing says otherwise."""
    return find_task(_USUAL[kind])


def task_of(config: Config) -> Task:
    """The task of a configuration, with its options. One that names none means the usual task of its model's kind."""
    if config.task is None:
        return usual_task(config.model.kind)
    if isinstance(config.task, str):
        name, _, text = config.task.partition(":")
        return find_task(name.strip()).with_options(pairs(text, config.task))
    if not isinstance(config.task.get("name"), str):
        raise ValueError(f"task: say {{name: NAME, option: value}}, got {quoted(config.task)}")
    return find_task(config.task["name"]).with_options(
        {key: value for key, value in config.task.items() if key != "name"}
    )


def settled(config: Config) -> Config:
    """The configuration with its task, the task's options, and the kind of its model said."""
    task, kind = task_of(config), config.model.kind
    if config.task is not None and "kind" not in config.model.model_fields_set:
        kind = task.kinds[0]  # type: ignore[assignment]
    if kind not in task.kinds:
        raise ValueError(
            f"task {task.name!r} needs a model of kind {' or '.join(task.kinds)}, got model.kind {kind}; leave it out"
        )
    return config.with_task(task.said(), kind)
