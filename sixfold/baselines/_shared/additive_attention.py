"""Additive attention: a state of a decoder looks at the encoder's states.

Letters: S sentences, w hypotheses of each, B = S·w rows, n source length, M width of the memory, A width of the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sixfold.core.attention_kernels import fold, unfold
from sixfold.core.call import Call
from sixfold.core.init import Normal, linear, parameter
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place


class Source(NamedTuple):
    """The source texts as an attention reads them at every step of the decoder."""

    keys: Tensor  # (S, n, A): U h_j
    values: Tensor  # (S, n, M): h_j
    padding: Tensor | None  # (S, 1, n); None: there is none


class AdditiveAttention(ModelPart):
    """c = Σ_j softmax_j(vᵀ tanh(W s + U h_j)) h_j for a state s of the decoder. One head."""

    map = "softmax"

    def __init__(self, place: Place, state: int, memory: int, width: int):
        super().__init__()
        self.place, self.heads = place, 1
        self.query = linear(state, width, bias=False)  # W
        self.key = linear(memory, width, bias=False)  # U
        self.score = parameter((width,), Normal(width**-0.5))  # v

    def source(self, call: Call) -> Source:
        """The terms that do not depend on the decoder's state, computed once per sentence."""
        (keys,) = call.keep_for_sentences(self.place, lambda states: (self.key(states),))
        real = call.memory.real
        return Source(keys, call.memory.states[call.depth], None if real is None else ~real[:, None])

    def forward(self, state: Tensor, source: Source, call: Call) -> tuple[Tensor, Tensor]:
        """A state of each row (B, H) → its context (B, M) and weights (B, n). A row that may see nothing gets zeros."""
        query_SwA = self.query(state).unflatten(0, (len(source.keys), -1))
        scores_Swn = (query_SwA[:, :, None] + source.keys[:, None]).tanh() @ self.score
        if source.padding is None:
            weights_Swn = scores_Swn.softmax(-1)
        else:
            scores_Swn = scores_Swn.masked_fill(source.padding, torch.finfo(scores_Swn.dtype).min)
            weights_Swn = scores_Swn.softmax(-1).masked_fill(source.padding, 0)
        context_BM = (weights_Swn @ source.values).flatten(0, 1)
        return call.gate(self.place, context_BM[:, None, None])[:, 0, 0], weights_Swn.flatten(0, 1)

    def show(self, weights: Sequence[Tensor], source: Source, call: Call) -> None:
        """Show the weights (B, n) of each step, and the contexts before gating, to the tap, if there is one."""
        if call.watched(self.place):
            weights_B1Ln = torch.stack(list(weights), 1)[:, None]
            heads = fold(weights_B1Ln, len(source.values)) @ source.values[:, None]
            call.show(self.place, weights=weights_B1Ln, heads=unfold(heads, len(weights_B1Ln)))
