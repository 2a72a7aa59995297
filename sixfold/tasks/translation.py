"""The task `translation`: read one text, write another. It fits all pairs of texts, such as texts and summaries.

source = ids EOS       inputs = BOS ids         targets = ids EOS
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sixfold.core.batch import Batch
from sixfold.core.ids import BOS, EOS, PAD
from sixfold.scoring.names import TEXT_METRICS
from sixfold.tasks._words import RDropOptions, make_batch, passes, word_losses
from sixfold.tasks.task import Task, register
from sixfold.text.arrays import Examples
from sixfold.text.bucketing import Lengths
from sixfold.text.forms import PAIRS
from sixfold.text.rows import Rows, pad, shift

if TYPE_CHECKING:
    from sixfold.decoding.translator import Translator
    from sixfold.text.preparation import Reference


def lengths(examples: Examples) -> Lengths:
    assert examples.source is not None, "these rows are not pairs"
    return Lengths(examples.source.lengths + 1, examples.target.lengths + 1)  # + 1 for BOS or EOS, see above


def collate(rows: Rows, _: Any) -> Batch:
    assert rows.examples.source is not None, "these rows are not pairs"
    if not len(rows.index):
        return make_batch({"words": 0}, source=[[EOS]], inputs=[[BOS]], targets=[[PAD]])
    source, _ = pad(rows.examples.source, rows.index, add_eos=True)
    targets, real = pad(rows.examples.target, rows.index, add_eos=True)
    return make_batch({"words": int(np.sum(real))}, source=source, inputs=shift(targets, real), targets=targets)


def translator(models: Any, tokenizers: Any, decoding: Any, *, origin: Any = None, **_: Any) -> Translator:
    from sixfold.decoding.translator import Translator

    return Translator(models, tokenizers, decoding, origin=origin)


def answers(translator: Translator, sources: Sequence[str], stop: Callable[[], bool]) -> list[str]:
    return [found.text for found in translator.translate(sources, stop=stop)]


def rehearse(translator: Translator, references: Sequence[Reference]) -> None:
    """Make the job of every validation text without running it, to find mistakes before the first training step."""
    translator.session().rehearse([reference.source for reference in references], verb="decoded")


task = register(
    Task(
        name="translation",
        about="Read one text, write another: translations, summaries, pronunciations.",
        kinds=("encoder_decoder",),
        verb="translate",
        form=PAIRS,
        lengths=lengths,
        collate=collate,
        losses=word_losses,
        metrics=TEXT_METRICS,
        user=translator,
        answers=answers,
        rehearse=rehearse,
        options=RDropOptions(),
        work=passes,
    )
)
