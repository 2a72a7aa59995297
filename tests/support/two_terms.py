"""A task with two terms, as a user would write it: words are hidden, and the label of the whole text is asked, too.

A text has several hidden words and one label, so the terms have different counts. The model is a classifier; hidden
words are predicted by the table that it reads with.
"""

import numpy as np
import torch
import torch.nn.functional as F

from sixfold.core.batch import Batch, Term
from sixfold.scoring.labels import LABEL_METRICS
from sixfold.tasks import classification, masked_words
from sixfold.tasks.task import Task, register
from sixfold.text.forms import LABELLED_TEXT


def collate(rows, options):
    hidden = masked_words.collate(rows, options)
    number = len(rows.index)
    labels = rows.examples.columns["label"][rows.index] if number else [0]
    return Batch(
        source=hidden.source,
        targets=torch.from_numpy(np.asarray(labels, np.int64)),
        weights=torch.full((max(number, 1),), number > 0),
        words=hidden.targets,
        chosen=hidden.get("weights"),
        counts={"texts": number, "words": hidden.counts["words"]},
    )


def losses(model, batch, smoothing=0.0, recompute=False):
    reading = model.read(batch, recompute=recompute)
    label = model.score_classes(reading, batch.targets, smoothing, batch.get("weights"))
    chosen = batch.get("chosen")
    logits = model.roles["target"].logits(reading.x[chosen])
    words = F.cross_entropy(logits, batch.get("words")[chosen], reduction="sum")
    return {"texts": Term(label.sum, label.plain), "words": Term(words, words.detach())}


two_terms = register(
    Task(
        name="two_terms",
        about="Hidden words and the label of a text.",
        kinds=("encoder_only",),
        verb="classify",
        form=LABELLED_TEXT,
        lengths=masked_words.lengths,
        collate=collate,
        losses=losses,
        metrics=tuple(metric.name for metric in LABEL_METRICS),
        user=classification.classifier,
        answers=classification.answers,
        rehearse=classification.rehearse,
        options=masked_words.Masking(chosen=0.3),
        main="texts",
    )
)
