"""Classification: predict the label of a text.

source = ids        targets = the index of the label        of a text of at most data.max_length tokens
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sixfold.core.batch import Batch, Term
from sixfold.core.ids import EOS
from sixfold.scoring.names import LABEL_METRICS
from sixfold.tasks._words import make_batch
from sixfold.tasks.language_model import lengths
from sixfold.tasks.task import Task, register
from sixfold.text.forms import LABELLED_TEXT
from sixfold.text.rows import Rows, pad

if TYPE_CHECKING:
    from sixfold.config.schema import Data, Decoding
    from sixfold.decoding.classifier import Classifier
    from sixfold.models.encoder_only import EncoderOnly
    from sixfold.text.preparation import Reference


def collate(rows: Rows, _: Any) -> Batch:
    if not len(rows.index):
        return make_batch({"texts": 0}, source=[[EOS]], targets=[0], weights=np.zeros(1, bool))
    source, _ = pad(rows.examples.target, rows.index)
    return make_batch({"texts": len(rows.index)}, source=source, targets=rows.examples.columns["label"][rows.index])


def losses(model: EncoderOnly, batch: Batch, smoothing: float = 0.0, recompute: bool = False) -> dict[str, Term]:
    """−log p of the label of each text."""
    reading = model.read(batch, recompute=recompute)
    scored = model.score_classes(reading, batch.targets, smoothing, batch.get("weights"))
    return {"texts": Term(scored.sum, scored.plain), **reading.auxiliary_terms(scored.tokens)}


def classifier(
    models: Any, tokenizers: Any, decoding: Decoding, *, labels: Sequence[str] = (), data: Data | None = None, **_: Any
) -> Classifier:
    """A Classifier, which truncates texts to the same length as training."""
    from sixfold.decoding.classifier import Classifier

    if isinstance(models, Sequence):
        if len(models) > 1:
            raise ValueError(f"classifiers can't form an ensemble: give one run, got {len(models)}")
        (models,) = models
    return Classifier(models, tokenizers.source, labels, decoding, longest=None if data is None else data.max_length)


def answers(user: Classifier, sources: Sequence[str], stop: Callable[[], bool]) -> list[str]:
    return [found.label for found in user.classify(sources, stop=stop)]


def rehearse(user: Classifier, references: Sequence[Reference]) -> None:
    """Raise a ValueError if `decoding.too_long: refuse` refuses a validation text."""
    user.session().rehearse([reference.source for reference in references], "classified")


task = register(
    Task(
        name="classification",
        about="Predict the label of a text, from a table of texts and labels.",
        kinds=("encoder_only",),
        verb="classify",
        form=LABELLED_TEXT,
        lengths=lengths,
        collate=collate,
        losses=losses,
        metrics=LABEL_METRICS,
        user=classifier,
        answers=answers,
        rehearse=rehearse,
        main="texts",
    )
)
