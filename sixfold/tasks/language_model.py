"""Language model: predict each word of a text from the words before it.

inputs = BOS ids[:-1]    targets = ids        of a window of data.context tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sixfold.core.batch import Batch
from sixfold.core.ids import BOS, PAD
from sixfold.tasks._words import RDropOptions, make_batch, passes, word_losses
from sixfold.tasks.task import Task, register
from sixfold.text.arrays import Examples
from sixfold.text.bucketing import Lengths
from sixfold.text.forms import PLAIN_TEXT
from sixfold.text.rows import Rows, pad, shift

if TYPE_CHECKING:
    from sixfold.config.schema import Data
    from sixfold.decoding.generator import Generator
    from sixfold.text.preparation import Reference


@dataclass(frozen=True)
class LanguageModelOptions(RDropOptions):
    """How a text is read."""

    carry_state: bool = False  # windows in the order of the text, each from the state after the one before it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.carry_state and self.r_drop:
            raise ValueError("r_drop passes over each window twice, but carry_state carries one state; choose one")


def streams(options: Any) -> bool:
    return (
        isinstance(options, LanguageModelOptions) and options.carry_state
    )  # a user's task may have options of its own


def lengths(examples: Examples) -> Lengths:
    return Lengths(None, examples.target.lengths)


def collate(rows: Rows, _: Any) -> Batch:
    if not len(rows.index):
        return make_batch({"words": 0}, inputs=[[BOS]], targets=[[PAD]])
    targets, real = pad(rows.examples.target, rows.index)
    return make_batch({"words": int(np.sum(real))}, inputs=shift(targets, real), targets=targets)


def generator(
    models: Any, tokenizers: Any, decoding: Any, *, data: Data | None = None, origin: Any = None, **_: Any
) -> Generator:
    from sixfold.decoding.generator import Generator

    return Generator(models, tokenizers, decoding, context=None if data is None else data.context, origin=origin)


def rehearse(user: Generator, _: Sequence[Reference]) -> None:
    user.session()  # raises a ValueError if the section `decoding` asks for the impossible


task = register(
    Task(
        name="language_model",
        about="Predict each word of a text from the words before it.",
        kinds=("decoder_only",),
        verb="generate",
        form=PLAIN_TEXT,
        lengths=lengths,
        collate=collate,
        losses=word_losses,
        metrics=(),
        user=generator,
        rehearse=rehearse,
        options=LanguageModelOptions(),
        streams=streams,
        work=passes,
    )
)
