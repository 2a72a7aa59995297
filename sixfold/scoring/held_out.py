"""A run's own validation and test data, prepared as in training. Equal sources become one text with all references."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sixfold.config.schema import Config
from sixfold.core.loss import perplexity_of
from sixfold.models.model import Model, evaluating
from sixfold.runs.run import Run
from sixfold.text.arrays import Examples, open_examples
from sixfold.text.corpus import open_prepared
from sixfold.text.labels import read_labels
from sixfold.text.preparation import Reference
from sixfold.text.report import SplitReport
from sixfold.text.sources import Source, Split
from sixfold.text.tokenizer import Tokenizers

if TYPE_CHECKING:
    from sixfold.tasks.task import Task


@dataclass(frozen=True)
class Loss:
    """The loss on a split that is cut into windows, as in the training of a language model."""

    log_prob: float
    tokens: int
    bytes: int  # of the split; 0 for masked words, for which bits per byte would mean nothing

    def json(self) -> dict[str, Any]:
        loss = -self.log_prob / self.tokens
        return {
            "loss": loss,
            "perplexity": perplexity_of(loss),
            **({"bits_per_byte": -self.log_prob / math.log(2) / self.bytes} if self.bytes else {}),
            "tokens": self.tokens,
            "bytes": self.bytes,
        }


def own_references(run: Run, config: Config, task: Task, tokenizers: Tokenizers, split: Split) -> list[Reference]:
    """The texts of a split with their references. The run has a copy of `valid`; `test` is read from its files."""
    if split == "valid" and run.data.is_dir():
        found = open_prepared(run.data, tokenizers).references
    else:
        found = task.form.references(config.data, split)
    if not found:
        hint = _valid_instead(config, split)
        raise ValueError(f"{run.directory} has no data.{split} to score: give --source-file and --ref{hint}")
    return found


def _valid_instead(config: Config, split: Split) -> str:
    return ", or --part valid" if split == "test" and config.data.validates else ""


@torch.inference_mode()
def own_loss(run: Run, config: Config, task: Task, tokenizers: Tokenizers, model: Model, split: Split) -> Loss:
    """The loss of a model of words on a split, in the same windows as in validation."""
    total = tokens = 0.0
    device = next(model.parameters()).device
    with tempfile.TemporaryDirectory(prefix="sixfold-") as folder, evaluating(model):
        if split == "valid" and config.data.valid is None:
            examples, size = _held_out(run, tokenizers)
        else:
            examples, size = _tokenised(run, config, task, tokenizers, split, Path(folder))
        vocabulary = len(tokenizers.target)
        score = task.scoring(tokenizers)
        for number, batch in enumerate(task.in_order(examples, config.training.batch_tokens, vocabulary)):
            terms, counts = score(model, batch.to(device), number)
            total, tokens = total + float(terms[task.main].shown), tokens + counts[task.main]
    return Loss(-total, int(tokens), size if model.writes_text else 0)


def _held_out(run: Run, tokenizers: Tokenizers) -> tuple[Examples, int]:
    """The text that was held out of the training text, with its bytes: it is stored in the run."""
    prepared = open_prepared(run.data, tokenizers) if run.data.is_dir() else None
    if prepared is None or prepared.valid is None:
        raise ValueError(f"{run.directory} has no data.valid to score: give --target-file and --likelihood")
    return prepared.valid, prepared.report.splits["valid"].bytes or 0


def _tokenised(
    run: Run, config: Config, task: Task, tokenizers: Tokenizers, split: Split, folder: Path
) -> tuple[Examples, int]:
    """The text of the files of a split, tokenised into a folder, with its bytes."""
    sources = task.form.sources(config.data, split)
    if not sources:
        hint = _valid_instead(config, split)
        raise ValueError(f"this run has no data.{split} to score: give --target-file and --likelihood{hint}")
    size = 0 if task.form.has_labels else _bytes(sources, side=1 if task.form.has_pairs else 0)
    labels = (read_labels(run.directory),) if task.form.has_labels else ()
    text = task.form.preparation(config.data, lambda *_: None, *labels)
    arrays, _ = text.encode(split, SplitReport(lines=0), tokenizers, folder)
    return open_examples(folder, split, arrays), size


def _bytes(sources: Sequence[Source[Any]], side: int) -> int:
    """The bytes of one side of all rows: of the texts that the model writes."""
    return sum(len(row[side].encode()) for source in sources for row in source.read())
