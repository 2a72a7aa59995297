"""Attention of one head: states of a recurrent decoder look at all of the encoder's states, by one of several scores.

Letters: S sentences, w hypotheses of each, B = S·w rows, L tokens, q = w·L, n source length, H width of the decoder's
states, M width of the memory, A width of the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sixfold.core.attention_kernels import fold, unfold
from sixfold.core.call import Call
from sixfold.core.init import Normal, linear, parameter
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place


class AttendedSource(NamedTuple):
    """The source texts as an attention reads them at every step of the decoder."""

    keys: Tensor  # (S, n, A)
    values: Tensor  # (S, n, M): h_j
    padding: Tensor | None  # (S, 1, n); None: there is none


class GlobalAttention(ModelPart):
    """c = Σ_j softmax_j(score(s, h_j)) h_j for a state s of the decoder. A subclass says what the score is."""

    map = "softmax"

    def __init__(self, place: Place):
        super().__init__()
        self.place, self.heads = replace(place, layers=1, name="cross"), 1

    def keys(self, call: Call) -> Tensor:
        """The term of the score that does not depend on the decoder's state, (S, n, A)."""
        raise NotImplementedError

    def scores(self, states_SqH: Tensor, keys_SnA: Tensor) -> Tensor:
        """(S, q, n)"""
        raise NotImplementedError

    def source(self, call: Call) -> AttendedSource:
        real = call.memory.real
        return AttendedSource(self.keys(call), call.memory.states[call.depth], None if real is None else ~real[:, None])

    def forward(self, states: Tensor, source: AttendedSource, call: Call) -> tuple[Tensor, Tensor]:
        """States (B, L, H) → contexts (B, L, M) and weights (B, L, n). A row that may see nothing gets zeros."""
        states_SqH = states.reshape(len(source.values), -1, states.shape[-1])
        scores_Sqn = self.scores(states_SqH, source.keys)
        if source.padding is None:
            weights_Sqn = scores_Sqn.softmax(-1)
        else:
            scores_Sqn = scores_Sqn.masked_fill(source.padding, torch.finfo(scores_Sqn.dtype).min)
            weights_Sqn = scores_Sqn.softmax(-1).masked_fill(source.padding, 0)
        rows, length = states.shape[:2]
        heads_B1LM = (weights_Sqn @ source.values).view(rows, 1, length, -1)
        return call.gate(self.place, heads_B1LM)[:, 0], weights_Sqn.view(rows, length, -1)

    def show(self, weights: Sequence[Tensor], source: AttendedSource, call: Call) -> None:
        """Show the weights (B, L, n) of all steps, and the contexts before gating, to the tap, if there is one."""
        if call.watched(self.place):
            weights_B1Ln = torch.cat(list(weights), 1)[:, None]
            heads = fold(weights_B1Ln, len(source.values)) @ source.values[:, None]
            call.show(self.place, weights=weights_B1Ln, heads=unfold(heads, len(weights_B1Ln)))


class DotAttention(GlobalAttention):
    """score(s, h_j) = sᵀ h_j"""

    def __init__(self, place: Place, state: int, memory: int):
        super().__init__(place)
        assert state == memory, "vectors of different widths have no product"

    def keys(self, call: Call) -> Tensor:
        return call.memory.states[call.depth]

    def scores(self, states_SqH: Tensor, keys_SnA: Tensor) -> Tensor:
        return states_SqH @ keys_SnA.transpose(1, 2)


class GeneralAttention(GlobalAttention):
    """score(s, h_j) = sᵀ W h_j. W h_j is computed once per sentence."""

    def __init__(self, place: Place, state: int, memory: int):
        super().__init__(place)
        self.key = linear(memory, state, bias=False)  # W

    def keys(self, call: Call) -> Tensor:
        return call.keep_for_sentences(self.place, lambda states: (self.key(states),))[0]

    def scores(self, states_SqH: Tensor, keys_SnA: Tensor) -> Tensor:
        return states_SqH @ keys_SnA.transpose(1, 2)


class AdditiveAttention(GlobalAttention):
    """score(s, h_j) = vᵀ tanh(W s + U h_j), with as many units as s has. U h_j is computed once per sentence."""

    def __init__(self, place: Place, state: int, memory: int):
        super().__init__(place)
        self.query = linear(state, state, bias=False)  # W
        self.key = linear(memory, state, bias=False)  # U
        self.score = parameter((state,), Normal(state**-0.5))  # v

    def keys(self, call: Call) -> Tensor:
        return call.keep_for_sentences(self.place, lambda states: (self.key(states),))[0]

    def scores(self, states_SqH: Tensor, keys_SnA: Tensor) -> Tensor:
        return (self.query(states_SqH)[:, :, None] + keys_SnA[:, None]).tanh() @ self.score


class NormalisedAttention(GlobalAttention):
    """score(s, h_j) = g (v/‖v‖)ᵀ tanh(W s + U h_j + b): the additive score, whose size is one number g."""

    def __init__(self, place: Place, state: int, memory: int):
        super().__init__(place)
        self.query = linear(state, state, bias=False)  # W
        self.key = linear(memory, state)  # U and b
        self.score = parameter((state,), Normal(state**-0.5))  # v
        self.size = nn.Parameter(torch.full((1,), state**-0.5))  # g

    def keys(self, call: Call) -> Tensor:
        return call.keep_for_sentences(self.place, lambda states: (self.key(states),))[0]

    def scores(self, states_SqH: Tensor, keys_SnA: Tensor) -> Tensor:
        hidden = (self.query(states_SqH)[:, :, None] + keys_SnA[:, None]).tanh()
        return hidden @ (self.size * self.score / self.score.norm())


class ProductAttention(GlobalAttention):
    """score(s, h_j) = Σ_d v_d tanh(W s)_d tanh(U h_j)_d, a matrix product. tanh(U h_j) is made once per sentence."""

    def __init__(self, place: Place, state: int, memory: int):
        super().__init__(place)
        self.query = linear(state, state, bias=False)  # W
        self.key = linear(memory, state, bias=False)  # U
        self.score = parameter((state,), Normal(state**-0.5))  # v

    def keys(self, call: Call) -> Tensor:
        return call.keep_for_sentences(self.place, lambda states: (self.key(states).tanh(),))[0]

    def scores(self, states_SqH: Tensor, keys_SnA: Tensor) -> Tensor:
        return (self.score * self.query(states_SqH).tanh()) @ keys_SnA.transpose(1, 2)
