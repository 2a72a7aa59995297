"""A task is a value: how text becomes batches, the losses, the metrics, and how a trained model is used.

    task: masked_words                      in a configuration,
    task: {name: masked_words, masked: 0.3} with options,
    --task masked_words:masked=0.3          on the command line

Each file of this package registers one task; a file given by --import can register another in the same way.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sixfold.core.batch import Batch
from sixfold.core.names import did_you_mean, unknown
from sixfold.core.quote import quoted
from sixfold.scoring.names import LABEL_METRICS, TEXT_METRICS
from sixfold.spec.options import pairs, read_value

if TYPE_CHECKING:
    from sixfold.config.schema import Config
    from sixfold.core.batch import Term
    from sixfold.models.model import Model
    from sixfold.text.arrays import Examples
    from sixfold.text.bucketing import Lengths
    from sixfold.text.forms import TextForm
    from sixfold.text.rows import Rows
    from sixfold.text.tokenizer import Tokenizers

LOSSES = ("loss", "perplexity")  # metrics of every task
_METRICS = (*TEXT_METRICS, *LABEL_METRICS)  # those that a task may name


@dataclass(frozen=True)
class NoOptions:
    """The options of a task that has none."""


@dataclass(frozen=True)
class Task:
    """The purpose of a model: text to batches, losses, metrics, and use."""

    name: str
    about: str  # one line for a list
    kinds: tuple[str, ...]  # the kinds of models that can be trained for it, the usual one first
    verb: str  # the command that uses a trained model, such as "translate"; "" if there is none
    form: TextForm  # files → rows on disk
    lengths: Callable[[Examples], Lengths]  # the tokens of each row, for the batch's budget
    collate: Callable[[Rows, Any], Batch]  # (rows, options) → a batch with its counts: a pure function
    losses: Callable[..., dict[str, Term]]  # (model, batch, smoothing=, recompute=[, options=]) → the terms to minimise
    metrics: tuple[str, ...]  # besides the loss; the first one decides which weights are best
    # (models, tokenizers, decoding, labels=, data=, origin=) → the object that uses the model: a Translator, …
    user: Callable[..., Any] | None = None
    answers: Callable[..., list[str]] | None = None  # (user, sources, stop) → the texts that the metrics score
    rehearse: Callable[..., None] | None = None  # (user, references): raises a ValueError if decoding would fail
    # (model, batch, key=[, options=][, tokenizers=]) → a batch, before the forward
    before: Callable[..., Batch] | None = None
    options: Any = NoOptions()  # a frozen dataclass of the options that only this task has, with defaults
    main: str = "words"  # the term that is reported as the loss, and the name of its count
    # (options) → whether rows are windows of a text, read in its order, and `losses` takes a cache that is carried on
    streams: Callable[[Any], bool] = lambda options: False
    measures: tuple[str, ...] = ()  # terms that are no losses: their `shown` is reported under their own name
    maximised: str = ""  # the measure that the guard watches, if the main term is not what is minimised
    trained: bool = False  # it improves a trained model: it needs --from, and validates before the first step
    searches: bool = False  # `before` decodes with the model: it is called in training only, and not under FSDP
    work: Callable[[Any], float] = lambda options: 1.0  # time of a step; 1: each word of the batch is predicted once
    metric_of: Callable[[Any], str] | None = None  # (options) → the metric that decides, in place of the first one
    drift: float | None = None  # the run ends if metric or length of outputs get worse by this share of the first

    def batch(self, rows: Rows) -> Batch:
        """`collate` with the task's options."""
        return self._counted(self.collate(rows, self.options), "collate")

    @property
    def terms(self) -> Callable[..., dict[str, Term]]:
        """`losses`, with the task's options if it takes them."""
        return self._with_own_options(self.losses)

    def rewriting(
        self, key: tuple[int, ...], tokenizers: Tokenizers | None = None
    ) -> Callable[[Model, Batch], Batch] | None:
        """`before` with this key, and with the task's options and the tokenizers if it takes them; None without it."""
        if self.before is None:
            return None
        before = partial(self._with_own_options(self.before), key=key)
        if _takes(self.before, "tokenizers"):
            before = partial(before, tokenizers=tokenizers)
        return lambda model, batch: self._counted(before(model, batch), "before")

    @property
    def reads_streams(self) -> bool:
        return self.streams(self.options)

    def carrying(self, losses: Callable[..., Any]) -> Callable[..., Any]:
        """The same losses; if the task reads streams, an object that carries the state from batch to batch."""
        if not self.reads_streams:
            return losses
        from sixfold.core.carried_state import CarryingLosses

        return CarryingLosses(losses)

    def in_order(self, examples: Examples, batch_tokens: int, words: int) -> Iterator[Batch]:
        """Every row once, in batches that are always the same, for `scoring`."""
        from sixfold.text.batches import in_order
        from sixfold.text.streams import in_one_stream

        if self.reads_streams:
            return in_one_stream(examples, self.batch, words)
        return in_order(examples, self.lengths(examples), self.batch, batch_tokens, words)

    def scoring(
        self, tokenizers: Tokenizers | None = None
    ) -> Callable[[Model, Batch, int], tuple[dict[str, Term], dict[str, int]]]:
        """A function for batches in validation, which gives their terms and counts; it is used for one text."""
        losses = self.carrying(self.terms)

        def score(model: Model, batch: Batch, number: int) -> tuple[dict[str, Term], dict[str, int]]:
            key = (0, 0, 0, number)  # of the batch alone
            rewrite = None if self.searches else self.rewriting(key, tokenizers)
            batch = batch if rewrite is None else rewrite(model, batch)
            terms = model(batch, losses)
            batch.need_terms(terms)
            return terms, batch.counts

        return score

    def _counted(self, batch: Any, function: str) -> Batch:
        """The batch that a function of the task returned; ValueError if it is not a Batch, or lacks a count."""
        if not isinstance(batch, Batch):
            raise ValueError(f"task {self.name!r}: its {function} must return a Batch, got {type(batch).__name__}")
        if self.main not in batch.counts:
            has = ", ".join(batch.counts) or "nothing"
            raise ValueError(
                f"task {self.name!r}: its main term is {self.main!r}, but the batch of its {function} counts {has}"
            )
        return batch

    def _with_own_options(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return partial(function, options=self.options) if _takes(function, "options") else function

    @property
    def known_metrics(self) -> tuple[str, ...]:
        return (*LOSSES, *self.metrics)

    @property
    def usual_metric(self) -> str:
        """The metric that decides which weights are best, unless training.metric names another."""
        return (*self.metrics, "loss")[0] if self.metric_of is None else self.metric_of(self.options)

    def watched(self, losses: Mapping[str, float]) -> float:
        """The number of a step that must not rise: the reported loss, or the negative of what is maximised."""
        return -losses[self.maximised] if self.maximised else losses[self.main]

    def label(self, term: str) -> str:
        """The name in the log of a term besides the main one."""
        return term if term in self.measures else f"{term}_loss"

    def imported_from(self) -> list[str]:
        """The user's file that registered it; empty for sixfold's own tasks."""
        module = sys.modules.get(_origins.get(self.name, ""))
        return [str(module.__file__)] if module is not None and module.__name__.startswith("sixfold_import_") else []

    def entry(self) -> dict[str, Any]:
        """The entry of a configuration, with every option."""
        return {"name": self.name, **asdict(self.options)}

    def with_options(self, values: Mapping[str, Any]) -> Task:
        """The same task with other options; values may be given as text."""
        hints = typing.get_type_hints(type(self.options))
        known = [option.name for option in fields(self.options)]
        for key in values:
            if key not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise ValueError(f"task {self.name!r} has no option {key!r}{did_you_mean(key, known)}; {has}")
        what = f"of task {self.name!r}"
        read = {key: read_value(value, hints[key], f"option {key!r} {what}") for key, value in values.items()}
        return replace(self, options=replace(self.options, **read))


def _takes(function: Callable[..., Any], parameter: str) -> bool:
    return parameter in inspect.signature(function).parameters


_registered: dict[str, Task] = {}
_origins: dict[str, str] = {}  # task → the module that registered it
_USUAL = {"encoder_decoder": "translation", "decoder_only": "language_model", "encoder_only": "masked_words"}


def register(task: Task) -> Task:
    """Register a task under its name. A later one of the same name replaces it, but never one of sixfold's own."""
    module = sys._getframe(1).f_globals["__name__"]  # of the caller: the functions of a task may be another's
    if not task.name.isidentifier():
        raise ValueError(f"the name of a task has letters, digits and _, got {quoted(task.name)}")
    if task.name in _own_names() and module != f"{__package__}.{task.name}":
        raise ValueError(f"task {task.name!r} is one of sixfold's own; give yours another name")
    for metric in set(task.metrics).difference(_METRICS):
        raise ValueError(f"task {task.name!r}: {unknown('metric', metric, _METRICS)}")
    if task.metrics and (task.answers is None or task.user is None):
        raise ValueError(
            f"task {task.name!r} has metrics, so it needs `user` and `answers`: metrics score the model's answers"
        )
    _registered[task.name], _origins[task.name] = task, module
    return task


def all_tasks() -> dict[str, Task]:
    """All tasks by name: those of this package and those of imported files."""
    for name in _own_names():
        importlib.import_module(f"sixfold.tasks.{name}")
    return dict(_registered)


def _own_names() -> list[str]:
    """The tasks of this package, each in a file of its name."""
    package = importlib.import_module("sixfold.tasks")
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return [name for name in names if not name.startswith("_") and name != "task"]


def find_task(name: str) -> Task:
    if name not in _registered and name in _own_names():  # imports only this task's file
        importlib.import_module(f"sixfold.tasks.{name}")
    known = _registered if name in _registered else all_tasks()
    if name not in known:
        raise ValueError(
            f"there is no task {quoted(name)}{did_you_mean(name, known)}; there are {', '.join(known)}, "
            f"and a task of your own must be imported first (--import FILE)"
        )
    return known[name]


def usual_task(kind: str, classes: int = 0) -> Task:
    """The default task of a kind of model, which may have classes."""
    return find_task("classification" if classes else _USUAL[kind])


def task_of(config: Config) -> Task:
    """The task of a configuration, with its options. The default is the usual task of its model's kind."""
    if config.task is None:
        return usual_task(config.model.kind)
    if isinstance(config.task, str):
        name, _, text = config.task.partition(":")
        return find_task(name.strip()).with_options(pairs(text, config.task))
    if not isinstance(config.task.get("name"), str):
        raise ValueError(f"task: give {{name: NAME, option: value}}, got {quoted(config.task)}")
    return find_task(config.task["name"]).with_options(
        {key: value for key, value in config.task.items() if key != "name"}
    )


def settled(config: Config) -> Config:
    """The configuration with its task, the task's options, and the kind of its model filled in."""
    task, kind = task_of(config), config.model.kind
    if config.task is not None and "kind" not in config.model.model_fields_set:
        kind = task.kinds[0]  # type: ignore[assignment]
    if kind not in task.kinds:
        raise ValueError(
            f"task {task.name!r} needs a model of kind {' or '.join(task.kinds)}, got {kind}; leave model.kind out"
        )
    return config.with_task(task.entry(), kind)
