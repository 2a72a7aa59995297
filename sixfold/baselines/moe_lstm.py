"""LSTMs with a sparsely gated layer of experts between them.

Letters: B rows, L tokens, N tokens of all rows, k visits of a token, D model width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sixfold.baselines._shared.bottom_layer import BottomLayer
from sixfold.baselines._shared.cells import LSTMCell
from sixfold.baselines._shared.global_attention import ProductAttention
from sixfold.baselines._shared.noisy_gating import NoisyGate, squared_variation
from sixfold.baselines._shared.plain_parameters import plain_stacks
from sixfold.baselines._shared.recurrence import Recurrence
from sixfold.baselines._shared.recurrent_stacks import RecurrentLayer, ZeroState
from sixfold.core.call import Call
from sixfold.core.dropout import Dropout
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.modifications._shared.experts import Experts, load, tokens_of
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import LastState, Position, run


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """The options of moe_lstm."""

    experts: int
    k: int
    d_expert: int
    importance: float
    load: float

    def __post_init__(self) -> None:
        for option in ("experts", "k", "d_expert"):
            if getattr(self, option) < 1:
                raise ValueError(f"moe_lstm: {option} must be at least 1, got {getattr(self, option)}")
        if self.k > self.experts:
            raise ValueError(f"moe_lstm: a token visits k = {self.k} experts, but there are only {self.experts}")
        for option in ("importance", "load"):
            if not getattr(self, option) >= 0:
                raise ValueError(f"moe_lstm: {option} must be at least 0, got {getattr(self, option)}")


class ExpertLayer(ModelPart):
    """σ(Σ_i G(x)_i E_i(x)) for every token alike."""

    batch_dependent = True
    not_exported = "the number of tokens of an expert depends on the text, but an exported program has fixed shapes"

    def __init__(self, spec: Spec, place: Place, mixture: Mixture):
        super().__init__()
        self.place, self.mixture = place.named("experts"), mixture
        self.gate = NoisyGate(spec.sizes.d_model, mixture.experts, mixture.k)
        self.experts = Experts(spec, mixture.experts, mixture.d_expert, variance=1.0)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        x_ND, real_N = tokens_of(x, call)
        found = self.gate(x_ND, real_N)
        call.measure(self.place, "load", lambda: load(found.experts, self.mixture.experts))
        if self.training and call.losses is not None:
            uneven = self.mixture.importance * squared_variation(found.importance)
            call.losses.append(uneven + self.mixture.load * squared_variation(found.load))
        y_NkD = self.experts(x_ND, found.experts)
        return (found.gates[..., None].to(y_NkD.dtype) * y_NkD).sum(1).sigmoid().view(x.shape)


class ExpertStack(ModelPart):
    """x + Drop(layer(x)) for each LSTM, and for the experts, which are below the last LSTM."""

    def __init__(self, spec: Spec, place: Place, mixture: Mixture, layers: Iterable[nn.Module]):
        super().__init__()
        if place.layers < 2:
            stack = "the model" if place.stack == "only" else f"the {place.stack}"
            raise ValueError(f"moe_lstm: its experts are between two LSTM layers; give {stack} 2 layers or more")
        self.layers = nn.ModuleList(layers)
        self.experts = ExpertLayer(spec, place.at(place.layers - 1), mixture)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        states, last = [x], len(self.layers) - 1
        for depth, layer in enumerate(self.layers):
            at_depth = replace(call, depth=depth)
            if depth == last:
                states.append(self.added(self.experts, states[-1], at_depth))
            states.append(self.added(layer, states[-1], at_depth))
        return states, call

    def added(self, layer: nn.Module, x: Tensor, call: Call) -> Tensor:
        return x + self.dropout(run(layer, x, call))

    def units(self) -> list[nn.Module]:
        return [*self.layers, self.experts]


class FromZero(ModelPart):
    """h_1 … h_n, or with both ways [→h_j; ←h_j], beginning with zeros."""

    def __init__(self, inputs: int, units: int, both_ways: bool):
        super().__init__()
        self.cell = Recurrence(LSTMCell, inputs, units, both_ways=both_ways)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        y, _ = self.cell(x, self.cell.zeros(x), call)
        return y


def _reader(spec: Spec, place: Place, mixture: Mixture) -> ExpertStack:
    """A stack without a memory: a language model, or an encoder, whose first layer reads in both directions."""
    width, places = spec.sizes.d_model, [place.at(layer) for layer in range(place.layers)]
    if place.causal:
        layers: list[nn.Module] = [RecurrentLayer(spec, at, LSTMCell, ZeroState(width)) for at in places]
        return ExpertStack(spec, place, mixture, layers)
    if width % 2:
        raise ValueError(f"moe_lstm: two directions share d_model {width}, which is odd; choose an even one")
    above = [FromZero(width, width, both_ways=False) for _ in places[1:]]
    return ExpertStack(spec, place, mixture, [FromZero(width, width // 2, both_ways=True), *above])


class ExpertDecoder(ExpertStack):
    """The bottom LSTM attends; the LSTMs above it read [x; a_t], the experts x."""

    def __init__(self, spec: Spec, place: Place, mixture: Mixture):
        width = spec.sizes.d_model
        bottom = BottomLayer(spec, place.at(0), ProductAttention, width)
        places = [place.at(layer) for layer in range(1, place.layers)]
        above = [RecurrentLayer(spec, at, LSTMCell, ZeroState(width), 2 * width) for at in places]
        super().__init__(spec, place, mixture, [bottom, *above])

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        bottom, *above = self.layers
        h, context = run(bottom, x, replace(call, depth=0)).chunk(2, -1)  # after its dropout
        states = [x, x + h]
        for depth, layer in enumerate(above, start=1):
            at_depth = replace(call, depth=depth)
            if layer is above[-1]:
                states.append(self.added(self.experts, states[-1], at_depth))
            y = run(layer, torch.cat([states[-1], context], -1), at_depth)
            states.append(states[-1] + self.dropout(y))
        return states, call


def moe_lstm_parameters(sizes: Sizes, experts: int = 32, d_expert: int | None = None, **_: Any) -> int:
    d, of = sizes.d_model, LSTMCell.parameters_of
    encoder = 2 * of(d, d // 2) + (sizes.encoder_layers - 1) * of(d, d)
    decoder = sizes.decoder_layers * of(2 * d, d) + 2 * d * d + d
    mixture = experts * (2 * d * (sizes.d_ff if d_expert is None else d_expert) + 2 * d)
    return encoder + decoder + 2 * mixture - plain_stacks(sizes)


MOST = {"experts": 10_000, "k": 10_000, "d_expert": 1_000_000, "importance": 1e6, "load": 1e6}


@modification("1701.06538", adds=moe_lstm_parameters, most=MOST)
def moe_lstm(
    spec: Spec,
    *,
    experts: int = 32,
    k: int = 4,
    d_expert: int | None = None,
    importance: float = 0.1,
    load: float = 0.1,
) -> Spec:
    """LSTMs with a sparsely gated layer of experts between them: each token visits the k experts with the best scores.

        y = σ(Σ_i G(x)_i E_i(x))              E_i(x) = φ(x W₁[i]) W₂[i]
        G = softmax of the k largest of H, 0 for the others
        H = x W_g + ε ⊙ softplus(x W_noise)   ε ~ N(0, 1), in training only

        x ← x + Drop(LSTM(x))                 every layer but the last
        x ← x + Drop(y)                       the experts
        x ← x + Drop(LSTM(x))                 the last layer

    Two losses keep the load even. CV² is the variance over the squared mean, P_i the probability that expert i is
    among the k if only its noise is drawn again:

        importance · CV²(Σ_x G(x)) + load · CV²(Σ_x P(x))
        P_i(x) = Φ(((x W_g)_i − the k-th largest H of the other experts) / softplus(x W_noise)_i)

    W_g and W_noise start at 0, so at first chance alone chooses; 0.01 is added to softplus. Padding is neither routed
    nor counted, and no expert has a limit. In a language model and in the decoder LSTMs read from left to right; the
    encoder's first layer reads in both directions, with d_model/2 units each. The decoder's bottom LSTM attends, with
    scores Σ_d v_d tanh(W h_t)_d tanh(U x_j)_d that are one matrix product; all its LSTMs read the context, as in gnmt.
    The paper's models have two LSTMs (language model, decoder) or three (encoder) with the experts below the last one;
    here the layers are as many as the sizes say, 2 or more. Its translation models also choose experts by thresholds
    that balance each batch exactly, and project LSTMs of 2048 units to 512; its largest ones have groups of experts.
    These are left out. The paper's weights of the losses are 0.1 for language models, 0.01 for translation. There are
    no positions; heads are not used, and d_ff only for d_expert, which is d_ff unless given.
    In training the losses depend on the whole batch. Outside of training there is no noise, and no text depends on
    others.
    Parameters: 4 H (I + H + 1) for each LSTM, where I inputs lead to H units (in the decoder I = 2 · d_model); in each
    stack experts · (2·d_model·d_expert + 2·d_model); 2·d_model² + d_model for the attention.
    """
    width = spec.sizes.d_ff if d_expert is None else d_expert
    mixture = Mixture(experts=experts, k=k, d_expert=width, importance=importance, load=load)
    return replace(
        spec,
        stack=partial(_reader, mixture=mixture),
        decoder_stack=partial(ExpertDecoder, mixture=mixture),
        bridge=LastState,
        position=Position,
    )
