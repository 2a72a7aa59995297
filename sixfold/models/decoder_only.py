"""The decoder-only model: a decoder without an encoder, trained as a language model.

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
from sixfold.models.model import Features, Gates, Model, Reading, new_sinks, one_vocabulary
from sixfold.spec.spec import Spec


class DecoderOnly(Model):
    """A decoder without an encoder, which predicts each word from the words before it."""

    kind = "decoder_only"
    reads_source, writes_text = False, True
    stacks = ("decoder",)  # its sizes are decoder_layers and the target vocabulary; its place is "only"

    def __init__(self, spec: Spec):
        super().__init__(spec)
        self.place = Place("only", layers=spec.sizes.decoder_layers, causal=True)
        self._register_tables(one_vocabulary(spec))
        self.input = spec.input(spec, self.place)
        self.stack = spec.stack(spec, self.place)
        self.head = spec.head(spec, self.place)
        self._draw_weights(spec)

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
        """Ids (B, L) → states (B, L, D). `log_probs(states)` are the log-probabilities of each next word.

        Rows of different length may be padded on either side. With `cache=Cache(rows=B)`, the ids continue the rows
        of the cache.
        """
        return self._decode(ids, real, cache=cache, features=features, tap=tap, gates=gates)

    def read(self, batch: Batch, *, recompute: bool = False, cache: Cache | None = None) -> Reading:
        sinks = new_sinks()
        how = {"recompute": recompute, "cache": cache, "features": batch.features("inputs")}
        x = self._decode(batch.inputs, None, **how, **sinks)
        return Reading(x, None, *sinks.values())

    def score(self, reading: Reading, batch: Batch, smoothing: float) -> Scored:
        return self.score_words(reading.x, batch, smoothing)

    def _decode(self, ids: Tensor, real: Tensor | None, **rest: Any) -> Tensor:
        x, call = self._enter(self.input, self.place, "target", ids, real, **rest)
        states, call = self.stack(x, call)
        finish(call, x.shape[1], "only")
        return states[-1]
