"""An encoder alone: predicts masked words, or the class of a text.

Letters: S rows, n length, D model width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sixfold.core.batch import Batch, Losses
from sixfold.core.init import linear
from sixfold.core.inputs import check_classes, check_smoothing
from sixfold.core.loss import smoothed_loss
from sixfold.core.place import Place
from sixfold.core.tap import Tap
from sixfold.models.model import Gates, Model, one_vocabulary, total_of
from sixfold.spec.spec import Spec
from sixfold.transformer import Input


class EncoderOnly(Model):
    """Understands a text: predicts masked words, or with `classes` says which class the whole is of."""

    kind = "encoder_only"

    def __init__(self, spec: Spec):
        super().__init__(spec)
        self.place = Place("only", layers=spec.sizes.encoder_layers, causal=False)
        roles = one_vocabulary(spec)
        self._own(roles if not spec.sizes.classes else {"target": roles["target"]})
        self.input = Input(spec, self.place)
        self.stack = spec.stack(spec, self.place)
        if spec.sizes.classes:
            self.classifier = linear(spec.sizes.d_model, spec.sizes.classes)
        else:
            self.head = spec.head(spec, self.place)
        self._complete(spec)

    def encode(
        self, ids: Tensor, real: Tensor | None = None, *, tap: Tap | None = None, gates: Gates | None = None
    ) -> Tensor:
        """Ids (S, n) → states (S, n, D)."""
        return self._encode(ids, real, tap=tap, gates=gates)[0]

    def classify(self, ids: Tensor, real: Tensor | None = None) -> Tensor:
        """Ids (S, n) → the log-probability of each class (S, classes)."""
        return self._logits(*self._encode(ids, real)).log_softmax(-1)

    def forward(self, batch: Batch, smoothing: float = 0.0, recompute: bool = False) -> Losses:
        auxiliary: list[Tensor] = []
        x, real = self._encode(batch.source, None, losses=auxiliary, recompute=recompute)
        if not self.sizes.classes:
            return self._losses(x, batch.targets, smoothing, auxiliary)
        check_smoothing(smoothing)
        check_classes(batch.targets, x, self.sizes.classes)
        log_p = self._logits(x, real).log_softmax(-1)
        total, plain = (smoothed_loss(log_p, batch.targets, epsilon) for epsilon in (smoothing, 0.0))
        return Losses(total, torch.tensor(x.shape[0], device=x.device), total_of(auxiliary, total), plain.detach())

    def _encode(self, ids: Tensor, real: Tensor | None, **rest: Any) -> tuple[Tensor, Tensor | None]:
        x, call = self._enter(self.input, self.place, "target", ids, real, **rest)
        states, call = self.stack(x, call)
        return states[-1], call.real

    def _logits(self, x: Tensor, real: Tensor | None) -> Tensor:
        """The mean of the states of what is not padding, classified. → (S, classes)"""
        if not self.sizes.classes:
            raise ValueError("this model predicts words; build it with Sizes(classes=…) to classify")
        if real is None:
            return self.classifier(x.mean(1))
        weight = real.to(x.dtype)[..., None]
        return self.classifier((x * weight).sum(1) / weight.sum(1).clamp(min=1))
