"""A decoder alone: continues a text.

Letters: B rows, L length, D model width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sixfold.core.batch import Batch
from sixfold.core.inputs import finish
from sixfold.core.loss import Scored
from sixfold.core.place import Place
from sixfold.core.state import Cache
from sixfold.core.tap import Tap
from sixfold.models.model import Features, Gates, Model, Reading, one_vocabulary
from sixfold.spec.spec import Spec


class DecoderOnly(Model):
    """A language model: continues a text."""

    kind = "decoder_only"
    reads_source, writes_text = False, True
    stacks = ("decoder",)

    def __init__(self, spec: Spec):
        super().__init__(spec)
        self.place = Place("only", layers=spec.sizes.decoder_layers, causal=True)
        self._own(one_vocabulary(spec))
        self.input = spec.input(spec, self.place)
        self.stack = spec.stack(spec, self.place)
        self.head = spec.head(spec, self.place)
        self._complete(spec)

    def decode(
        self,
        ids: Tensor,
        real: Tensor | None = None,
        *,
        cache: Cache | None = None,
        features: Features | None = None,
        tap: Tap | None = None,
        gates: Gates | None = None,
    ) -> Tensor:
        """Ids (B, L) → states (B, L, D), each of which predicts the next word through `log_probs`.

        Rows of different length may be padded on either side. With `cache=Cache(rows=B)`, the ids continue each row of
        the cache.
        """
        return self._decode(ids, real, cache=cache, features=features, tap=tap, gates=gates)

    def read(self, batch: Batch, *, recompute: bool = False) -> Reading:
        auxiliary: list[Tensor] = []
        features = batch.features("inputs")
        return Reading(
            self._decode(batch.inputs, None, losses=auxiliary, recompute=recompute, features=features), None, auxiliary
        )

    def score(self, reading: Reading, batch: Batch, smoothing: float) -> Scored:
        return self.score_words(reading.x, batch, smoothing)

    def _decode(self, ids: Tensor, real: Tensor | None, **rest: Any) -> Tensor:
        x, call = self._enter(self.input, self.place, "target", ids, real, **rest)
        states, call = self.stack(x, call)
        finish(call, x.shape[1], "only")
        return states[-1]
