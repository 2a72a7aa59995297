"""What can be said of a run before it begins: mistakes are found here, while nothing has been read or written."""

from __future__ import annotations

from sixfold.config import schema
from sixfold.config.schema import Config
from sixfold.core.place import Sizes
from sixfold.models.build import build
from sixfold.models.model import Model
from sixfold.runs.run import Run
from sixfold.tasks.task import settled, task_of
from sixfold.text.forms import TextForm
from sixfold.training.optimizer import make_optimizers
from sixfold.training.start_from import inherit, outline
from sixfold.training.validation import check_validation

_MANY = 1_000_000  # words, where nobody knows yet how many: no modification asks for more


def check(config: Config, before: Run | None = None) -> tuple[Config, Model]:
    """The configuration, if a run can begin with it, and with what it inherits from the run `before`.

    → and the model without memory for its weights; its vocabulary and classes may yet turn out others
    """
    config = settled(config if before is None else inherit(config, before))
    if config.data.train is None:
        raise ValueError("what should it learn from? Give --data.train, or a recipe that says it")
    task = task_of(config)
    if config.model.classes:
        raise ValueError(
            f"model.classes is {config.model.classes}, but the labels say how many classes there are; leave it out"
        )
    check_validation(config, task)
    sized = config.with_classes(2) if task.form.has_labels else config  # the text will say how many
    model = _outline(sized) if before is None else outline(sized, before)
    make_optimizers(model, config.training)
    _check_lengths(model, config, task.form)
    return config, model


def _outline(config: Config) -> Model:
    """The model without memory for its weights."""
    return build(_expected_sizes(config), config.model.modifications, config.model.kind, device="meta")


def _expected_sizes(config: Config) -> Sizes:
    """The sizes of the model, as far as they are known without the text: its vocabulary may yet turn out smaller."""
    words = config.data.vocabulary or _MANY
    if isinstance(words, int) and not isinstance(config.data.tokenizer, str):
        words = schema.Vocabularies(source=words, target=words)
    return config.model_copy(update={"data": config.data.model_copy(update={"vocabulary": words})}).sizes()


def _check_lengths(model: Model, config: Config, form: TextForm) -> None:
    """A part that has a limit must be able to read the longest text that is not dropped."""
    most = getattr(config.data, form.limit)
    for stack, limit in model.limits.items():
        if most + form.ends > limit:
            whose = "model" if stack == "only" else stack
            raise ValueError(
                f"data.{form.limit} is {most:,}, but this {whose} can read {limit:,} tokens only; let it be "
                f"{limit - form.ends:,} at most, or give its modification a larger length"
            )
