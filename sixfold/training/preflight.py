"""What can be said of a run before it begins: mistakes are found here, while nothing has been read or written."""

from __future__ import annotations

from sixfold.config import schema
from sixfold.config.schema import Config
from sixfold.core.place import Sizes
from sixfold.models.build import build
from sixfold.models.model import Model
from sixfold.runs.run import Run
from sixfold.training.optimizer import make_optimizers
from sixfold.training.start_from import inherit, outline
from sixfold.training.validation import check_validation

_MANY = 1_000_000  # words, where nobody knows yet how many: no modification asks for more


def check(config: Config, before: Run | None = None) -> Config:
    """The configuration, if a run can begin with it, and with what it inherits from the run `before`."""
    if before is not None:
        config = inherit(config, before)
    if config.data.train is None:
        raise ValueError("what should it learn from? Give --data.train, or a recipe that says it")
    if config.model.classes:
        raise ValueError(f"model.classes is {config.model.classes}, but `train` can't teach classes yet; it must be 0")
    check_validation(config)
    model = _outline(config) if before is None else outline(config, before)
    make_optimizers(model, config.training)
    _check_lengths(model, config)
    return config


def _outline(config: Config) -> Model:
    """The model without memory for its weights."""
    return build(_expected_sizes(config), config.model.modifications, config.model.kind, device="meta")


def _expected_sizes(config: Config) -> Sizes:
    """The sizes of the model, as far as they are known without the text: its vocabulary may yet turn out smaller."""
    words = config.data.vocabulary or _MANY
    if isinstance(words, int) and not isinstance(config.data.tokenizer, str):
        words = schema.Vocabularies(source=words, target=words)
    return config.model_copy(update={"data": config.data.model_copy(update={"vocabulary": words})}).sizes()


def _check_lengths(model: Model, config: Config) -> None:
    """A part that has a limit must be able to read the longest text that is not dropped."""
    data = config.data
    pairs = config.model.kind == "encoder_decoder"
    key, longest = ("max_length", data.max_length + 1) if pairs else ("context", data.context)  # EOS, or BOS, is one
    for stack, limit in model.limits.items():
        if longest > limit:
            whose = "model" if stack == "only" else stack
            raise ValueError(
                f"data.{key} is {getattr(data, key):,}, but this {whose} can read {limit:,} tokens only; let it be "
                f"{limit - pairs:,} at most, or give its modification a larger length"
            )
