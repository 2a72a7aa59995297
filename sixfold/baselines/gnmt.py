"""GNMT: deep LSTMs with residual connections; the bottom of the decoder attends, and every layer reads what it saw.

Letters: B rows, L tokens, D model width, M width of the memory.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from sixfold.baselines._shared.bottom_layer import BottomLayer
from sixfold.baselines._shared.cells import LSTMCell
from sixfold.baselines._shared.global_attention import NormalisedAttention
from sixfold.baselines._shared.plain_parameters import plain_stacks
from sixfold.baselines._shared.recurrent_stacks import RecurrentEncoderLayer, RecurrentLayer, ZeroState, need_encoder
from sixfold.core.call import Call
from sixfold.core.dropout import Dropout
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import LastState, Position, run

FIRST_RESIDUAL = 2  # the index of the first layer with a residual connection


def memory_width(sizes: Sizes) -> int:
    """A layer above the bidirectional one makes states of d_model again."""
    return 2 * sizes.d_model if sizes.encoder_layers == 1 else sizes.d_model


class ResidualEncoder(ModelPart):
    """A bidirectional layer, and layers from left to right above it: x + Drop(LSTM(x)) from the third on."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        need_encoder("gnmt", place)
        width = spec.sizes.d_model
        inputs = [width, 2 * width, *[width] * (place.layers - 2)][: place.layers]
        self.layers = nn.ModuleList(
            RecurrentEncoderLayer(spec, LSTMCell, each, width, both_ways=layer == 0)
            for layer, each in enumerate(inputs)
        )

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        states = [x]
        for depth, layer in enumerate(self.layers):
            y, _ = run(layer, states[-1], replace(call, depth=depth))
            states.append(y if depth < FIRST_RESIDUAL else states[-1] + y)
        return states, call

    def units(self) -> nn.ModuleList:
        return self.layers


class EncoderTop(LastState):
    """The encoder's last state for the decoder's attention."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__(spec, place)
        self.memory_width = memory_width(spec.sizes)


class ResidualDecoder(ModelPart):
    """The layer that attends, and layers above it that read [x; a_t]: x + Drop(LSTM([x; a_t])) from the third on."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        if place.layers < 2:
            raise ValueError(
                f"gnmt: the context of a word is read by the decoder layers above the first, and decoder_layers is "
                f"{place.layers}; give it 2 or more"
            )
        self.width, self.context = spec.sizes.d_model, memory_width(spec.sizes)
        inputs = self.width + self.context
        above = (
            RecurrentLayer(spec, place.at(layer), LSTMCell, ZeroState(self.width), inputs)
            for layer in range(1, place.layers)
        )
        self.layers = nn.ModuleList([BottomLayer(spec, place.at(0), NormalisedAttention, self.context), *above])
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        bottom, *above = self.layers
        h, context = run(bottom, x, replace(call, depth=0)).split((self.width, self.context), -1)
        states = [x, h]
        for depth, layer in enumerate(above, start=1):
            y = self.dropout(run(layer, torch.cat([states[-1], context], -1), replace(call, depth=depth)))
            states.append(y if depth < FIRST_RESIDUAL else states[-1] + y)
        return states, call

    def units(self) -> nn.ModuleList:
        return self.layers


def gnmt_parameters(sizes: Sizes) -> int:
    d, of, context = sizes.d_model, LSTMCell.parameters_of, memory_width(sizes)
    above_first = of(2 * d, d) + (sizes.encoder_layers - 2) * of(d, d) if sizes.encoder_layers > 1 else 0
    encoder, decoder = 2 * of(d, d) + above_first, sizes.decoder_layers * of(d + context, d)
    attention = d * (d + context) + 2 * d + 1
    return encoder + decoder + attention - plain_stacks(sizes)


@modification("1609.08144", adds=gnmt_parameters)
def gnmt(spec: Spec) -> Spec:
    """Google's translation system of 2016: deep LSTMs with residual connections, and attention from the bottom layer.

        encoder    x¹ = [→LSTM(x⁰); ←LSTM(x⁰)]         d_model units in each direction
                   x² = LSTM(x¹)
                   xᵏ = xᵏ⁻¹ + LSTM(xᵏ⁻¹)              for k ≥ 3
        decoder    h¹_t = LSTM([y_t; a_{t−1}])         a_0 = 0
                   a_t  = Σ_j α_tj x_j                 x_j: the encoder's last states
                   α_t  = softmax_j(g (v/‖v‖)ᵀ tanh(W h¹_t + U x_j + b))
                   h²_t = LSTM([h¹_t; a_t])
                   hᵏ_t = hᵏ⁻¹_t + LSTM([hᵏ⁻¹_t; a_t])    for k ≥ 3

    Layers are as many as the sizes say (the paper has 8 and 8, of width 1024), in the decoder 2 or more. The decoder
    starts with zeros: the attention alone connects it with the source. Only the bottom layer, which attends, computes
    one word after the other in training; the layers above it read all words by a fused kernel. So the context that is
    given to them is that of the same word, as in the second version of the public code (gnmt_v2); in the first version
    it is that of the word before. Dropout acts on the output of each LSTM and on the context. The attention has one
    head, "decoder.0.cross". There are no positions; heads and d_ff are not used.
    The search has the paper's other parts: `length_penalty` α is ((5 + L)/6)^α, and `coverage_penalty` β adds
    β Σ_j log min(Σ_t α_tj, 1); the paper's α and β are 0.2.
    Parameters: 4 H (I + H + 1) for each layer and direction, where I inputs lead to H = d_model units (I is 2 H in the
    second encoder layer and in all of the decoder); 2 H² + 2 H + 1 for the attention. With one encoder layer, states
    and contexts are 2 H wide: I is then 3 H in the decoder, and the attention has H² more.
    """
    return replace(spec, stack=ResidualEncoder, decoder_stack=ResidualDecoder, bridge=EncoderTop, position=Position)
