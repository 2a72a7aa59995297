"""Masked words (BERT, 1810.04805): mask some words of a text, and predict them from the others.

source = ids, some replaced        targets = ids        weights = which were replaced
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sixfold.core.batch import Batch
from sixfold.core.ids import CONTROLS, EOS, MASK, PAD
from sixfold.tasks._words import make_batch, word_losses
from sixfold.tasks.language_model import lengths
from sixfold.tasks.task import Task, register
from sixfold.text.forms import PLAIN_TEXT
from sixfold.text.rows import Rows, pad, uniform


@dataclass(frozen=True)
class Masking:
    """Shares, from 0 to 1."""

    chosen: float = 0.15  # of all words: those to be predicted
    masked: float = 0.8  # of the chosen words: replaced by MASK
    random: float = 0.1  # of the chosen words: replaced by a random word; the rest stays as it is

    def __post_init__(self) -> None:
        for name in ("chosen", "masked", "random"):
            share = getattr(self, name)
            if not 0 <= share <= 1:
                raise ValueError(f"option {name!r} of task 'masked_words' is a share from 0 to 1, got {share:g}")
        if not self.chosen or self.masked + self.random > 1:
            raise ValueError(
                f"task 'masked_words': chosen must be more than 0, and masked + random at most 1, "
                f"got {self.chosen:g}, {self.masked:g} and {self.random:g}"
            )


def collate(rows: Rows, options: Masking) -> Batch:
    if not len(rows.index):
        return make_batch({"words": 0}, source=[[EOS]], targets=[[PAD]], weights=np.zeros((1, 1), bool))
    words, real = pad(rows.examples.target, rows.index)
    choice, fate, other = (uniform(rows.keys, words.shape[1], stream) for stream in range(3))
    choice[~real] = 2
    chosen = choice < options.chosen
    chosen |= choice == choice.min(1, keepdims=True)  # at least one word of each row
    random = len(CONTROLS) + (other * (rows.words - len(CONTROLS))).astype(np.int64)
    replaced = np.where(fate < options.masked + options.random, random, words)
    instead = np.where(fate < options.masked, MASK, replaced)
    source = np.where(chosen, instead, words)
    return make_batch({"words": int(chosen.sum())}, source=source, targets=words, weights=chosen)


task = register(
    Task(
        name="masked_words",
        about="Predict masked words of a text from the other words; gives an encoder to fine-tune.",
        kinds=("encoder_only",),
        verb="",
        form=PLAIN_TEXT,
        lengths=lengths,
        collate=collate,
        losses=word_losses,
        metrics=(),
        options=Masking(),
    )
)
