"""What can be said of a run before it begins: mistakes are found here, while nothing has been read or written."""

from __future__ import annotations

from typing import Any

from sixfold.config import schema
from sixfold.config.schema import Config
from sixfold.core.place import Sizes
from sixfold.models.build import build
from sixfold.models.model import Model
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.tasks.task import task_of
from sixfold.text.forms import TextForm
from sixfold.text.tokenizer import Tokenizers
from sixfold.training.optimizer import make_optimizers
from sixfold.training.validation import check_validation

_MANY = 1_000_000  # words, where nobody knows yet how many: no modification asks for more


def check(config: Config, before: Run | None = None) -> Config:
    """The configuration, if a run can begin with it; it says so where tokenizers come from the run `before`."""
    if config.data.train is None:
        raise ValueError("what should it learn from? Give --data.train, or a recipe that says it")
    task = task_of(config)
    if config.model.classes:
        raise ValueError(
            f"model.classes is {config.model.classes}, but the labels say how many classes there are; leave it out"
        )
    check_validation(config, task)
    if before is None:
        model = _outline(config, _expected_sizes(config))
    else:
        config, model = _begin_with(config, before)
    make_optimizers(model, config.training)
    _check_lengths(model, config, task.form)
    return config


def _outline(config: Config, sizes: Sizes) -> Model:
    """The model without memory for its weights."""
    return build(sizes, config.model.modifications, config.model.kind, device="meta")


def _expected_sizes(config: Config) -> Sizes:
    """The sizes of the model, as far as they are known without the text: its vocabulary may yet turn out smaller."""
    words = config.data.vocabulary or _MANY
    if isinstance(words, int) and not isinstance(config.data.tokenizer, str):
        words = schema.Vocabularies(source=words, target=words)
    return _with_data(config, vocabulary=words).sizes()


def _with_data(config: Config, **values: Any) -> Config:
    return config.model_copy(update={"data": config.data.model_copy(update=values)})


def _begin_with(config: Config, before: Run) -> tuple[Config, Model]:
    """The configuration with the tokenizers of a trained run, and the model, which must be like that run's."""
    old = model_files.skeleton(before.directory)
    if old.kind != config.model.kind:
        raise ValueError(f"--from {before.directory}: its model.kind is {old.kind}, here {config.model.kind}")
    tokenizers = Tokenizers.load(before.directory)
    config = _with_tokenizers(config, tokenizers, before)
    model = _outline(config, config.sizes_with(tokenizers))
    _compare(model, old, before)
    return config, model


def _with_tokenizers(config: Config, tokenizers: Tokenizers, before: Run) -> Config:
    """The configuration that says which tokenizers these are, if it says nothing else so far."""
    if tokenizers.joint:
        kind: Any = tokenizers.source.kind
        words: Any = len(tokenizers.source)
    else:
        kind = schema.TokenizerKinds.model_validate({s: t.kind for s, t in tokenizers._asdict().items()})
        words = schema.Vocabularies(source=len(tokenizers.source), target=len(tokenizers.target))
    data, then = config.data, before.read_config().data
    for key, has in {"tokenizer": kind, "vocabulary": words}.items():
        said = getattr(data, key)
        # As many words as were asked for are as right as those that were found.
        if key in data.model_fields_set and said is not None and said not in (has, getattr(then, key)):
            raise ValueError(
                f"data.{key} is {_short(said)}, but --from {before.directory} brings a tokenizer where it is "
                f"{_short(has)}; say the same, or leave it out"
            )
    return _with_data(config, tokenizer=kind, vocabulary=words)


def _short(value: Any) -> str:
    return ", ".join(f"{side} {of}" for side, of in value) if isinstance(value, schema.Section) else str(value)


def _compare(model: Model, old: Model, before: Run) -> None:
    """The weights of one must fit the other."""
    here, there = vars(model.sizes), vars(old.sizes)
    different = [
        f"its {key} is {size}, here {here[key]}"
        for key, size in there.items()
        if key != "dropout" and size != here[key]
    ]
    if old.assembly.modifications != model.assembly.modifications:
        different.append(f"its modifications are {_names(old)}, here {_names(model)}")
    if different:
        raise ValueError(f"--from {before.directory}: {'; '.join(different)}")


def _names(model: Model) -> str:
    return ", ".join(str(chosen) for chosen in model.assembly.modifications) or "none"


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
