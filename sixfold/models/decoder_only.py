"""A decoder alone: goes on with a text.

Letters: B rows, L length, D model width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sixfold.core.batch import Batch, Losses
from sixfold.core.inputs import finish
from sixfold.core.place import Place
from sixfold.core.state import Cache
from sixfold.core.tap import Tap
from sixfold.models.model import Gates, Model, one_vocabulary
from sixfold.spec.spec import Spec
from sixfold.transformer import Input


class DecoderOnly(Model):
    """Goes on with a text: a language model."""

    kind = "decoder_only"
    depth = ("decoder_layers",)

    def __init__(self, spec: Spec):
        super().__init__(spec)
        self.place = Place("only", layers=spec.sizes.decoder_layers, causal=True)
        self._own(one_vocabulary(spec))
        self.input = Input(spec, self.place)
        self.stack = spec.stack(spec, self.place)
        self.head = spec.head(spec, self.place)
        self._complete(spec)

    def decode(
        self,
        ids: Tensor,
        real: Tensor | None = None,
        *,
        cache: Cache | None = None,
        tap: Tap | None = None,
        gates: Gates | None = None,
    ) -> Tensor:
        """Ids (B, L) → states (B, L, D), each of which predicts the next word through `log_probs`.

        Rows of different length may be padded at either side. With `cache=Cache(rows=B)`, the ids go
        on from where each row of the cache is.
        """
        return self._decode(ids, real, cache=cache, tap=tap, gates=gates)

    def forward(self, batch: Batch, smoothing: float = 0.0, recompute: bool = False) -> Losses:
        auxiliary: list[Tensor] = []
        x = self._decode(batch.inputs, None, losses=auxiliary, recompute=recompute)
        return self._losses(x, batch.targets, smoothing, auxiliary)

    def _decode(self, ids: Tensor, real: Tensor | None, **rest: Any) -> Tensor:
        x, call = self._enter(self.input, self.place, "target", ids, real, **rest)
        states, call = self.stack(x, call)
        finish(call, x.shape[1])
        return states[-1]
