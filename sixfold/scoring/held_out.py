"""A run's own held-out text, scored as training validates: equal sources are one with several references."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sixfold.config.schema import Config
from sixfold.core.loss import perplexity_of
from sixfold.models.model import Model, evaluating
from sixfold.runs.run import Run
from sixfold.text.arrays import open_examples
from sixfold.text.batches import in_order
from sixfold.text.corpus import Reference, open_prepared, references
from sixfold.text.preparation import PlainText
from sixfold.text.report import PartReport
from sixfold.text.sources import Split, text_sources
from sixfold.text.tokenizer import Tokenizers


@dataclass(frozen=True)
class Loss:
    """Of a text that is cut into windows, as a language model is trained on it."""

    log_prob: float
    tokens: int
    bytes: int

    def json(self) -> dict[str, Any]:
        loss = -self.log_prob / self.tokens
        return {
            "loss": loss,
            "perplexity": perplexity_of(loss),
            "bits_per_byte": -self.log_prob / math.log(2) / self.bytes,
            "tokens": self.tokens,
            "bytes": self.bytes,
        }


def own_references(run: Run, config: Config, tokenizers: Tokenizers, part: Split) -> list[Reference]:
    """The texts of a part with their references; those of the validation are in the run itself."""
    if part == "valid" and run.data.is_dir():
        found = open_prepared(run.data, tokenizers).references
    else:
        found = references(config.data, part, config.model.kind)
    if not found:
        valid = ", or --part valid" if part == "test" and config.data.valid is not None else ""
        raise ValueError(f"{run.directory} has no data.{part} to be scored on: give --source-file and --ref{valid}")
    return found


@torch.inference_mode()
def own_loss(config: Config, tokenizers: Tokenizers, model: Model, part: Split) -> Loss:
    """The loss of a language model on a part, by the same windows as in validation."""
    sources = text_sources(config.data, part)
    if not sources:
        valid = ", or --part valid" if part == "test" and config.data.valid is not None else ""
        raise ValueError(f"this run has no data.{part} to be scored on: give --target-file and --likelihood{valid}")
    size = sum(len(text.encode()) for source in sources for text, _ in source.read())
    total = tokens = 0.0
    device = next(model.parameters()).device
    with tempfile.TemporaryDirectory(prefix="sixfold-") as folder, evaluating(model):
        arrays, _ = PlainText(config.data, lambda *_: None).encode(part, PartReport(lines=0), tokenizers, Path(folder))
        examples = open_examples(Path(folder), part, arrays)
        for batch in in_order(examples, config.model.kind, config.training.batch_tokens, len(tokenizers.target)):
            losses = model(batch.to(device))
            total, tokens = total + float(losses.sum), tokens + float(losses.tokens)
    return Loss(-total, int(tokens), size)
