"""Encoder and decoder: reads one text and writes another.

Letters: S source rows, n source length, B target rows, L target length, D model width.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sixfold.core.batch import Batch
from sixfold.core.inputs import check_memory, finish
from sixfold.core.loss import Scored
from sixfold.core.memory import Memory
from sixfold.core.parts import declared
from sixfold.core.state import Cache
from sixfold.core.tap import Tap
from sixfold.models.model import Features, Gates, Model, Reading, new_sinks
from sixfold.spec.spec import Spec


class EncoderDecoder(Model):
    """Reads one text and writes another: translation, summaries, spelling to sound."""

    kind = "encoder_decoder"
    reads_source = writes_text = True
    stacks = ("encoder", "decoder")

    def __init__(self, spec: Spec):
        super().__init__(spec)
        self.places = encoder, decoder = spec.place("encoder"), spec.place("decoder")
        self._register_tables(spec.tables(spec)._asdict())
        self.encoder_input = spec.input(spec, encoder)
        self.encoder = spec.stack(spec, encoder)
        self.bridge = spec.bridge(spec, decoder)
        self.decoder_input = spec.input(spec, decoder)
        self.decoder = spec.decoder_stack(spec, decoder)
        self.head = spec.head(spec, decoder)
        self._draw_weights(spec)

    def encode(
        self,
        source: Tensor,
        real: Tensor | None = None,
        *,
        features: Features | None = None,
        tap: Tap | None = None,
        gates: Gates | None = None,
    ) -> Memory:
        """Ids (S, n) → the memory that `decode` reads. `real` is False at padding; by default at PAD."""
        return self._encode(source, real, features=features, tap=tap, gates=gates)

    def decode(
        self,
        ids: Tensor,
        memory: Memory | None = None,
        real: Tensor | None = None,
        *,
        cache: Cache | None = None,
        features: Features | None = None,
        tap: Tap | None = None,
        gates: Gates | None = None,
    ) -> Tensor:
        """Ids (B, L) → states (B, L, D), each of which predicts the next word through `log_probs`.

        With `cache=Cache(memory)` instead of a memory, the ids continue the rows of the cache.
        """
        if (memory is None) == (cache is None):
            got = "neither" if memory is None else "both"
            raise ValueError(f"decode needs either a memory or a cache that holds one, got {got}")
        return self._decode(ids, memory, real, cache, features=features, tap=tap, gates=gates)

    def read(self, batch: Batch, *, recompute: bool = False) -> Reading:
        sinks = new_sinks()
        how = {**sinks, "recompute": recompute}
        memory = self._encode(batch.source, None, features=batch.features("source"), **how)
        x = self._decode(batch.inputs, memory, None, None, features=batch.features("inputs"), **how)
        return Reading(x, None, *sinks.values())

    def score(self, reading: Reading, batch: Batch, smoothing: float) -> Scored:
        return self.score_words(reading.x, batch, smoothing)

    def _encode(self, source: Tensor, real: Tensor | None, **rest: Any) -> Memory:
        x, call = self._enter(self.encoder_input, self.places[0], "source", source, real, **rest)
        states, call = self.encoder(x, call)
        finish(call, x.shape[1], "encoder")
        left = call.memory or Memory((), None)  # a stack may leave more than its states
        return left._replace(states=tuple(self.bridge(states)), real=call.real)

    def _decode(
        self, ids: Tensor, memory: Memory | None, real: Tensor | None, cache: Cache | None, **rest: Any
    ) -> Tensor:
        if cache is not None and cache.memory is None:
            raise ValueError("the cache has no memory; create it with Cache(memory)")
        width = declared(self.bridge).memory_width or self.sizes.d_model
        memory = check_memory(memory if cache is None else cache.memory, self.sizes.decoder_layers, width)
        x, call = self._enter(
            self.decoder_input, self.places[1], "target", ids, real, memory=memory, cache=cache, **rest
        )
        rows = memory.rows * (1 if cache is None else cache.width)
        if x.shape[0] != rows:
            raise ValueError(f"the target has {x.shape[0]} rows, but the memory {rows}; give one target per source row")
        states, call = self.decoder(x, call)
        finish(call, x.shape[1], "decoder")
        return states[-1]
