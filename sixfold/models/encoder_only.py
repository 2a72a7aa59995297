"""An encoder alone: predicts masked words, or the class of a text.

Letters: S rows, n length, D model width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sixfold.core.batch import Batch
from sixfold.core.init import linear
from sixfold.core.inputs import check_classes, check_smoothing, finish
from sixfold.core.loss import Scored, smoothed_loss
from sixfold.core.place import Place
from sixfold.core.tap import Tap
from sixfold.models.model import Features, Gates, Model, Reading, new_sinks, one_vocabulary
from sixfold.spec.spec import Spec


class EncoderOnly(Model):
    """Predicts masked words, or with `classes` the class of a text."""

    kind = "encoder_only"
    reads_source = writes_text = False
    stacks = ("encoder",)

    def __init__(self, spec: Spec):
        super().__init__(spec)
        self.place = Place("only", layers=spec.sizes.encoder_layers, causal=False)
        roles = one_vocabulary(spec)
        self._register_tables(roles if not spec.sizes.classes else {"target": roles["target"]})
        self.input = spec.input(spec, self.place)
        self.stack = spec.stack(spec, self.place)
        if spec.sizes.classes:
            self.pool = spec.pool(spec, self.place.named("pool"))
            self.classifier = linear(spec.sizes.d_model, spec.sizes.classes)
        else:
            self.head = spec.head(spec, self.place)
        self._draw_weights(spec)

    def encode(
        self,
        ids: Tensor,
        real: Tensor | None = None,
        *,
        features: Features | None = None,
        tap: Tap | None = None,
        gates: Gates | None = None,
    ) -> Tensor:
        """Ids (S, n) → states (S, n, D)."""
        return self._encode(ids, real, features=features, tap=tap, gates=gates)[0]

    def classify(self, ids: Tensor, real: Tensor | None = None, *, features: Features | None = None) -> Tensor:
        """Ids (S, n) → the log-probability of each class (S, classes)."""
        return self._logits(*self._encode(ids, real, features=features)).log_softmax(-1)

    def read(self, batch: Batch, *, recompute: bool = False) -> Reading:
        sinks = new_sinks()
        x, real = self._encode(batch.source, None, recompute=recompute, features=batch.features("source"), **sinks)
        return Reading(x, real, *sinks.values())

    def score(self, reading: Reading, batch: Batch, smoothing: float) -> Scored:
        if not self.sizes.classes:
            return self.score_words(reading.x, batch, smoothing)
        return self.score_classes(reading, batch.targets, smoothing, batch.get("weights"))

    def score_classes(
        self, reading: Reading, targets: Tensor, smoothing: float, weights: Tensor | None = None
    ) -> Scored:
        """The loss of one class (S,) per row. Class 0 is a class like any other; rows of weight 0 don't count."""
        check_smoothing(smoothing)
        check_classes(targets, reading.x, self.sizes.classes)
        log_p = self._logits(reading.x, reading.real).log_softmax(-1)
        total, plain = (smoothed_loss(log_p, targets, epsilon, weights) for epsilon in (smoothing, 0.0))
        rows = torch.tensor(len(targets), device=log_p.device) if weights is None else (weights != 0).sum()
        return Scored(total, rows, plain.detach())

    def _encode(self, ids: Tensor, real: Tensor | None, **rest: Any) -> tuple[Tensor, Tensor | None]:
        x, call = self._enter(self.input, self.place, "target", ids, real, **rest)
        states, call = self.stack(x, call)
        finish(call, x.shape[1], "only")
        return states[-1], call.real

    def _logits(self, x: Tensor, real: Tensor | None) -> Tensor:
        """States (S, n, D), pooled to one vector per row → logits (S, classes)"""
        if not self.sizes.classes:
            raise ValueError("this model predicts words; build it with Sizes(classes=…) to classify")
        return self.classifier(self.pool(x, real))
