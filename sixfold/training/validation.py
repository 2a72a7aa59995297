"""Validation: the loss on text that is not trained on, and the task's own metric by really decoding it."""

from __future__ import annotations

import math
from typing import Any

import torch

from sixfold.config import Config
from sixfold.decoding.translator import Stopped, Translator
from sixfold.models import EncoderDecoder, Model
from sixfold.scoring.metrics import METRICS
from sixfold.text.batches import in_order
from sixfold.text.corpus import Prepared
from sixfold.training.processes import Processes, share
from sixfold.training.signals import Signals

LOSSES = ("loss", "perplexity")


class Validation:
    """Scores a model; sentences are dealt to the processes, each of which has all weights."""

    def __init__(self, config: Config, prepared: Prepared, processes: Processes):
        self.config, self.prepared, self.processes = config, prepared, processes
        self.metric = self._choose()

    @property
    def possible(self) -> bool:
        return self.prepared.valid is not None

    def _choose(self) -> str:
        kind, name = self.config.model.kind, self.config.training.metric
        if name == "auto":
            return "bleu" if kind == "encoder_decoder" else "loss"
        known = [*LOSSES, *(METRICS if kind == "encoder_decoder" else ())]
        if name not in known:
            raise ValueError(f"training.metric: there is no {name!r} for {kind}; there are {', '.join(known)}")
        return name

    def is_better(self, value: float, best: float | None) -> bool:
        if best is None or math.isnan(best):
            return True
        up = self.metric in METRICS and METRICS[self.metric].higher_is_better
        return value > best if up else value < best

    def score(self, model: Model, signals: Signals) -> dict[str, float] | None:
        """The loss, the perplexity and the metric; None if a signal came in between."""
        try:
            mine: list[Any] | None = [self._loss(model, signals), self._decode(model, signals)]
        except Stopped:
            mine = None
        everybody = self.processes.gather(mine)
        if None in everybody:
            signals.asked = True
            return None
        total, scored = (sum(part[0][i] for part in everybody) for i in range(2))
        scores = {"loss": total / scored, "perplexity": math.exp(min(total / scored, 700.0))}
        if self.metric in METRICS:
            hypotheses = [""] * len(self.prepared.references)
            for rank, (_, texts) in enumerate(everybody):
                hypotheses[rank :: self.processes.size] = texts
            truth = [reference.targets for reference in self.prepared.references]
            scores.update(METRICS[self.metric].score(hypotheses, truth))
        return scores

    @torch.inference_mode()
    def _loss(self, model: Model, signals: Signals) -> tuple[float, float]:
        """Σ −log p over this process's share, and over how many tokens."""
        assert self.prepared.valid is not None
        training, total, scored = self.config.training, 0.0, 0.0
        vocab = len(self.prepared.tokenizers.target)
        batches = in_order(self.prepared.valid, self.config.model.kind, training.batch_tokens, vocab)
        for number, batch in enumerate(batches):
            if signals.asked:
                raise Stopped
            if number % self.processes.size == self.processes.rank:
                losses = model(batch.to(self.processes.device))
                total, scored = total + float(losses.sum), scored + float(losses.tokens)
        return total, scored

    def _decode(self, model: Model, signals: Signals) -> list[str]:
        if self.metric not in METRICS or not isinstance(model, EncoderDecoder):
            return []
        translator = Translator(model, self.prepared.tokenizers, **self.config.decoding.model_dump())
        sources = [reference.source for reference in share(self.prepared.references, self.processes)]
        return [t.text for t in translator.translate(sources, stop=lambda: signals.asked)]
