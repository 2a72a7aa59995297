"""Checks of a configuration before a run begins, before any text is read or any file written."""

from __future__ import annotations

from sixfold.config import schema
from sixfold.config.plan import usual_heads
from sixfold.config.schema import Config
from sixfold.core.place import Sizes
from sixfold.models.build import build
from sixfold.models.model import Model
from sixfold.runs.run import Run
from sixfold.tasks.task import Task, settled, task_of
from sixfold.text.forms import TextForm
from sixfold.training.optimizer import make_optimizers
from sixfold.training.start_from import inherit, outline
from sixfold.training.validation import check_validation

_MANY = 1_000_000  # assumed vocabulary while its size is unknown: no modification needs a larger one


def check(config: Config, before: Run | None = None) -> tuple[Config, Model]:
    """Check a configuration, after filling in what it inherits from the run `before`.

    → the configuration, and the model on `meta`; its vocabulary and number of classes may still change
    """
    config = settled(config if before is None else inherit(config, before))
    if config.data.train is None:
        raise ValueError("there is no text to train on: give --data.train, or a recipe that has it")
    task = task_of(config)
    if config.model.classes:
        raise ValueError(
            f"model.classes is {config.model.classes}, but training sets it to the number of labels; leave it out"
        )
    check_validation(config, task)
    _check_start(config, task, before)
    sized = config.with_classes(2) if task.form.has_labels else config  # the number follows from the text
    model = _outline(sized) if before is None else outline(sized, before)
    make_optimizers(model, config.training)
    _check_lengths(model, config, task.form)
    _check_bpe_dropout(config, task)
    if task.reads_streams:
        check_streams(config.training)
    return config, model


def _check_start(config: Config, task: Task, before: Run | None) -> None:
    """Raise a ValueError if the task needs a trained model and there is none, or can't search in this kind of run."""
    if task.trained and before is None:
        raise ValueError(
            f"task {task.name!r} improves a trained model: train one first, without --task {task.name}, "
            f"then give --from RUN"
        )
    for key, value in {"parallel": "fsdp", "compile": True}.items():
        if task.searches and getattr(config.training, key) == value:
            raise ValueError(
                f"task {task.name!r} decodes while it trains, for which training.{key} can't be {value}; leave it out"
            )


def _outline(config: Config) -> Model:
    """The model on `meta`, without memory for its weights."""
    return build(_expected_sizes(config), config.model.modifications, config.model.kind, device="meta")


def _expected_sizes(config: Config) -> Sizes:
    """The sizes of the model as far as they are known before the text is read: its vocabulary may become smaller.

    The number of heads that the plan will choose is known, if the width is.
    """
    words = config.data.vocabulary or _MANY
    if not config.model.model_fields_set & {"heads", "d_head"}:
        heads = usual_heads(config.model.d_model)
        config = config.model_copy(update={"model": config.model.model_copy(update={"heads": heads})})
    if isinstance(words, int) and not isinstance(config.data.tokenizer, str):
        words = schema.Vocabularies(source=words, target=words)
    return config.model_copy(update={"data": config.data.model_copy(update={"vocabulary": words})}).sizes()


def check_streams(training: schema.Training, pieces: int | None = None) -> None:
    """Raise a ValueError if steps that carry a state are to be divided, or repeated; `pieces` of all processes."""
    if training.accumulate > 1:
        raise ValueError(f"carry_state: a window can't be divided; leave out training.accumulate {training.accumulate}")
    if pieces is not None and pieces > 1:
        raise ValueError(f"carry_state: its streams are read by one process, and there are {pieces}")
    for name in ("recompute", "compile"):
        if getattr(training, name):
            raise ValueError(f"carry_state does not go together with training.{name}; leave it out")


def _check_lengths(model: Model, config: Config, form: TextForm) -> None:
    """Raise a ValueError if the longest text that is kept exceeds a limit on positions."""
    most = getattr(config.data, form.limit)
    for stack, limit in model.limits.items():
        if most + form.ends > limit:
            whose = "model" if stack == "only" else stack
            raise ValueError(
                f"data.{form.limit} is {most:,}, but this {whose} can read only {limit:,} tokens; set it to at most "
                f"{limit - form.ends:,}, or give its modification a larger length"
            )


def _check_bpe_dropout(config: Config, task: Task) -> None:
    """Raise a ValueError if the pieces of this text can't be divided."""
    data = config.data
    kinds = [data.tokenizer] if isinstance(data.tokenizer, str) else [kind for _, kind in data.tokenizer]
    if not data.bpe_dropout:
        return
    if "bpe" not in kinds:
        raise ValueError(
            f"data.bpe_dropout divides the pieces of data.tokenizer bpe, got {' and '.join(kinds)}; leave it out"
        )
    if task.form.limit != "max_length":
        raise ValueError(f"data.bpe_dropout is not for the windows of plain text that {task.name} reads; leave it out")
