"""An LSTM encoder-decoder whose decoder attends to the source before each word.

Letters: B rows, L tokens, D model width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.baselines._shared.cells import LSTMCell
from sixfold.baselines._shared.global_attention import AdditiveAttention
from sixfold.baselines._shared.plain_parameters import plain_stacks
from sixfold.baselines._shared.recurrence import NOT_EXPORTED, unless_padding
from sixfold.baselines._shared.recurrent_stacks import RecurrentEncoder, RecurrentLayer, need_encoder
from sixfold.core.call import Call
from sixfold.core.dropout import Dropout
from sixfold.core.init import linear
from sixfold.core.memory import Memory
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.core.state import States
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import LastState, Position, run


class BackwardState(nn.Module):
    """h_0 = tanh(W_s ←h_1), c_0 = 0, where ←h_1 has read the source from its end to its first token."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.width = spec.sizes.d_model
        self.map = linear(self.width, self.width, bias=False)  # W_s

    def forward(self, memory: Memory, x: Tensor) -> States:
        h = self.map(memory.sentences["h"][:, -1, self.width :]).tanh()
        return h, torch.zeros_like(h)


class AttentiveLayer(ModelPart):
    """s_i = LSTM(s_{i−1}, [y_{i−1}; c_i]), where c_i is the context that s_{i−1} attends to. → Drop([s_i; c_i])"""

    not_exported = NOT_EXPORTED

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        width = spec.sizes.d_model
        self.place, self.width = place.named("cell"), width
        self.cross = AdditiveAttention(place, state=width, memory=2 * width)
        self.cell = LSTMCell(width + 2 * width, width)
        self.start = BackwardState(spec, place)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        source = self.cross.source(call)
        of_word, of_context = self.cell.input.split((self.width, 2 * self.width), 1)
        products_LB = F.linear(x.transpose(0, 1), of_word, self.cell.bias)  # (L, B, 4D): for all steps at once

        def update(*state: Tensor) -> tuple[Tensor, States]:
            outputs, all_weights = [], []
            for i, products in enumerate(products_LB.unbind(0)):
                contexts, weights = self.cross(state[0][:, None], source, call)
                context = contexts[:, 0]
                after = self.cell(torch.addmm(products, context, of_context.t()), *state)
                state = after if call.real is None else unless_padding(call.real[:, i], after, state)
                outputs.append(torch.cat([state[0], context], -1))
                all_weights.append(weights)
            self.cross.show(all_weights, source, call)
            return torch.stack(outputs, 1), state

        return self.dropout(call.carry(self.place, x, partial(self.start, x=x), update))


class AttentiveDecoder(ModelPart):
    """A layer that attends, plain ones above it, and the readout t_i = tanh(W_t [s_i; y_{i−1}; c_i] + b)."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.width = spec.sizes.d_model
        places = [place.at(layer) for layer in range(1, place.layers)]
        above = [RecurrentLayer(spec, at, LSTMCell, BackwardState(spec, at)) for at in places]
        self.layers = nn.ModuleList([AttentiveLayer(spec, place.at(0)), *above])
        self.readout = linear(4 * self.width, self.width)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        attentive, *above = self.layers
        s, context = run(attentive, x, replace(call, depth=0)).split((self.width, 2 * self.width), -1)
        states = [x, s]
        for depth, layer in enumerate(above, start=1):
            states.append(self.dropout(run(layer, states[-1], replace(call, depth=depth))))
        states[-1] = self.readout(torch.cat([states[-1], x, context], -1)).tanh()
        return states, call

    def units(self) -> nn.ModuleList:
        return self.layers


class Annotations(LastState):
    """h_j = [→h_j; ←h_j] for the decoder's attention."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__(spec, place)
        self.memory_width = 2 * spec.sizes.d_model


def bahdanau_encoder(spec: Spec, place: Place) -> RecurrentEncoder:
    need_encoder("bahdanau", place)
    return RecurrentEncoder(spec, place, LSTMCell, spec.sizes.d_model, both_ways=True)


def bahdanau_parameters(sizes: Sizes) -> int:
    d, of = sizes.d_model, LSTMCell.parameters_of
    encoder = 2 * of(d, d) + (sizes.encoder_layers - 1) * 2 * of(2 * d, d)
    decoder = of(3 * d, d) + (sizes.decoder_layers - 1) * of(d, d) + sizes.decoder_layers * d * d
    attention, readout = d * (d + 2 * d) + d, 4 * d * d + d
    return encoder + decoder + attention + readout - plain_stacks(sizes)


@modification("1409.0473", adds=bahdanau_parameters)
def bahdanau(spec: Spec) -> Spec:
    """An LSTM encoder-decoder with additive attention: before each word, the decoder looks at the source again.

        h_j  = [→h_j; ←h_j]                          a bidirectional LSTM, d_model units in each direction
        e_ij = vᵀ tanh(W s_{i−1} + U h_j)            the query is the state before the word
        α_i  = softmax(e_i),   c_i = Σ_j α_ij h_j
        s_i  = LSTM(s_{i−1}, [y_{i−1}; c_i])         s_0 = tanh(W_s ←h_1), and its cell is 0
        t_i  = tanh(W_t [s_i; y_{i−1}; c_i] + b)     from which the next word is predicted

    U h_j is computed once per sentence. The attention has one head, "decoder.0.cross", with d_model units. Further
    decoder layers are plain LSTMs above the one that attends; the readout reads the last one's s_i. The paper has
    gated recurrent units, one layer, and a maxout readout. There are no positions; heads and d_ff are not used.
    In training the decoder computes one word after the other, because a query needs the state before it.
    Parameters: 4 H (I + H + 1) for each layer and direction with I inputs and H = d_model units (the first
    decoder layer has I = 3 H); 3 H² + H for the attention, 4 H² + H for the readout, and H² (W_s) for each decoder
    layer.
    """
    return replace(spec, stack=bahdanau_encoder, decoder_stack=AttentiveDecoder, bridge=Annotations, position=Position)
