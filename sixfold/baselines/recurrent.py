"""Recurrent networks in place of the stacks: an LSTM, and an LSTM whose decoder attends to the source.

Letters: S sentences, B rows, L tokens, D model width, which is also the number of a decoder's units.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.baselines._shared.additive_attention import AdditiveAttention
from sixfold.baselines._shared.cells import NOT_EXPORTED, LSTMCell, Recurrence, unless_padding
from sixfold.baselines._shared.plain_parameters import plain_stacks
from sixfold.core.call import Call
from sixfold.core.dropout import Dropout
from sixfold.core.init import linear
from sixfold.core.memory import Memory
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.core.state import States
from sixfold.spec.registry import modification
from sixfold.spec.spec import Part, Spec
from sixfold.transformer import LastState, Position, run

# Reading: the encoder ---------------------------------------------------------------------------------------


class RecurrentEncoderLayer(ModelPart):
    """Drop(h_1 … h_n), with both ways [→h_j; ←h_j]; and the state at the end of each direction."""

    def __init__(self, spec: Spec, inputs: int, units: int, both_ways: bool):
        super().__init__()
        self.cell = Recurrence(inputs, units, both_ways=both_ways)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> tuple[Tensor, States]:
        y, state = self.cell(x, self.cell.zeros(x), call)
        return self.dropout(y), state


class RecurrentEncoder(ModelPart):
    """Layer upon layer. The memory's sentences are the layers' states at the end: "h" and "c", (S, layers, ·)."""

    def __init__(self, spec: Spec, place: Place, units: int, both_ways: bool):
        super().__init__()
        width = units * (2 if both_ways else 1)
        inputs = [spec.sizes.d_model, *[width] * (place.layers - 1)]
        self.layers = nn.ModuleList(RecurrentEncoderLayer(spec, each, units, both_ways) for each in inputs)

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        states, ends = [x], []
        for depth, layer in enumerate(self.layers):
            y, end = run(layer, states[-1], replace(call, depth=depth))
            states.append(y)
            ends.append(end)
        by_name = zip(LSTMCell.state, zip(*ends, strict=True), strict=True)
        sentences = {name: torch.stack(of_layers, 1) for name, of_layers in by_name}
        return states, replace(call, memory=Memory((), None, sentences=sentences))

    def units(self) -> nn.ModuleList:
        return self.layers


# Where a decoder starts ------------------------------------------------------------------------------------------


class EncoderState(nn.Module):
    """The end of the encoder's layer at the same height, counted from the top; without an encoder, zeros."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        assert place.layer is not None
        self.layer = max(0, spec.sizes.encoder_layers - place.layers + place.layer)
        self.width = spec.sizes.d_model

    def forward(self, memory: Memory | None, x: Tensor) -> States:
        if memory is None:
            return (x.new_zeros(1, self.width),) * len(LSTMCell.state)
        return tuple(memory.sentences[name][:, self.layer] for name in LSTMCell.state)


class BackwardState(nn.Module):
    """h_0 = tanh(W_s ←h_1), c_0 = 0, where ←h_1 has read the source from its end to its first token."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.width = spec.sizes.d_model
        self.map = linear(self.width, self.width, bias=False)  # W_s

    def forward(self, memory: Memory, x: Tensor) -> States:
        h = self.map(memory.sentences["h"][:, -1, self.width :]).tanh()
        return h, torch.zeros_like(h)


# Writing: the decoder --------------------------------------------------------------------------------------------


class RecurrentLayer(ModelPart):
    """Drop(h_1 … h_L), from left to right."""

    def __init__(self, spec: Spec, place: Place, start: Part):
        super().__init__()
        self.place = place.named("cell")
        self.cell = Recurrence(spec.sizes.d_model, spec.sizes.d_model)
        self.start = start(spec, place)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        def update(*state: Tensor) -> tuple[Tensor, States]:
            return self.cell(x, state, call)

        return self.dropout(call.carry(self.place, x, partial(self.start, x=x), update))


class RecurrentDecoder(ModelPart):
    """Layer upon layer, without a look at the source: all that is known of it is where the layers start."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.layers = nn.ModuleList(RecurrentLayer(spec, place.at(i), EncoderState) for i in range(place.layers))

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        states = [x]
        for depth, layer in enumerate(self.layers):
            states.append(run(layer, states[-1], replace(call, depth=depth)))
        return states, call

    def units(self) -> nn.ModuleList:
        return self.layers


class AttentiveLayer(ModelPart):
    """s_i = LSTM(s_{i−1}, [y_{i−1}; c_i]), where c_i is the context that s_{i−1} attends to. → Drop([s_i; c_i])"""

    not_exported = NOT_EXPORTED

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        width = spec.sizes.d_model
        self.place, self.width = place.named("cell"), width
        self.cross = AdditiveAttention(replace(place, layers=1, name="cross"), width, 2 * width, width)
        self.cell = LSTMCell(width + 2 * width, width)
        self.start = BackwardState(spec, place)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        source = self.cross.source(call)
        of_word, of_context = self.cell.input.split((self.width, 2 * self.width), 1)
        products_LB = F.linear(x.transpose(0, 1), of_word, self.cell.bias)  # (L, B, 4D): for all steps at once

        def update(*state: Tensor) -> tuple[Tensor, States]:
            outputs, looks = [], []
            for i, products in enumerate(products_LB.unbind(0)):
                context, weights = self.cross(state[0], source, call)
                after = self.cell(torch.addmm(products, context, of_context.t()), *state)
                state = after if call.real is None else unless_padding(call.real[:, i], after, state)
                outputs.append(torch.cat([state[0], context], -1))
                looks.append(weights)
            self.cross.show(looks, source, call)
            return torch.stack(outputs, 1), state

        return self.dropout(call.carry(self.place, x, partial(self.start, x=x), update))


class AttentiveDecoder(ModelPart):
    """A layer that attends, plain ones above it, and the readout t_i = tanh(W_t [s_i; y_{i−1}; c_i] + b)."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.width = spec.sizes.d_model
        above = (RecurrentLayer(spec, place.at(i), BackwardState) for i in range(1, place.layers))
        self.layers = nn.ModuleList([AttentiveLayer(spec, place.at(0)), *above])
        self.readout = linear(4 * self.width, self.width)

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        attentive, *above = self.layers
        s, context = run(attentive, x, replace(call, depth=0)).split((self.width, 2 * self.width), -1)
        states = [x, s]
        for depth, layer in enumerate(above, start=1):
            states.append(run(layer, states[-1], replace(call, depth=depth)))
        states[-1] = self.readout(torch.cat([states[-1], x, context], -1)).tanh()
        return states, call

    def units(self) -> nn.ModuleList:
        return self.layers


# The modifications -----------------------------------------------------------------------------------------------


class Bottleneck(LastState):
    """The decoder reads no state of a token: the encoder's last ones are in the memory's sentences."""


class Annotations(LastState):
    """h_j = [→h_j; ←h_j] for the decoder's attention."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__(spec, place)
        self.memory_width = 2 * spec.sizes.d_model


def lstm_stack(spec: Spec, place: Place, bidirectional: bool) -> RecurrentEncoder | RecurrentDecoder:
    """A causal stack has one direction. Other stacks have two, of d_model/2 units each, if `bidirectional`."""
    if place.causal:
        return RecurrentDecoder(spec, place)
    width = spec.sizes.d_model
    if bidirectional and width % 2:
        raise ValueError(
            f"lstm: two directions share d_model {width}, which is odd; choose an even one, or bidirectional=false"
        )
    return RecurrentEncoder(spec, place, width // 2 if bidirectional else width, bidirectional)


def lstm_parameters(sizes: Sizes, bidirectional: bool = True) -> int:
    d, of = sizes.d_model, LSTMCell.parameters_of
    encoder_layer = 2 * of(d, d // 2) if bidirectional else of(d, d)
    return sizes.encoder_layers * encoder_layer + sizes.decoder_layers * of(d, d) - plain_stacks(sizes)


@modification("1409.3215", adds=lstm_parameters)
def lstm(spec: Spec, *, bidirectional: bool = True) -> Spec:
    """A stacked LSTM in place of every stack; the decoder knows of the source only the encoder's last state.

        f_t = σ(W_f h_{t−1} + U_f x_t + b_f)        c̃_t = tanh(W_c h_{t−1} + U_c x_t + b_c)
        i_t = σ(W_i h_{t−1} + U_i x_t + b_i)        c_t = f_t ⊙ c_{t−1} + i_t ⊙ c̃_t
        o_t = σ(W_o h_{t−1} + U_o x_t + b_o)        h_t = o_t ⊙ tanh(c_t)

    x_t is the embedding, or h_t of the layer below, with dropout between layers and after the last. At the end of the
    source, h and c of each encoder layer are those with which a decoder layer starts (with fewer or more layers there,
    counted from the top): a bottleneck of fixed size for a text of any length.

         ●  →  ●  →  ●    h, c     ●  →  ●  →  ●
         ●  →  ●  →  ●     ⟶       ●  →  ●  →  ●
        the   cat   sat           BOS    le   chat

    An encoder reads in both directions, with d_model/2 units each, and a language model in one. With
    `bidirectional=false` an encoder reads from left to right only. The order of words is the order in which they are
    read, so there are no positions; heads and d_ff are not used. Biases of forget gates start at 1, W orthogonal.
    A token costs the same however long the text is, but tokens are read one after the other.
    Parameters: 4 H (I + H + 1) for each layer and direction, where I inputs lead to H units.
    """
    stack = partial(lstm_stack, bidirectional=bidirectional)
    return replace(spec, stack=stack, decoder_stack=stack, bridge=Bottleneck, position=Position)


def bahdanau_encoder(spec: Spec, place: Place) -> RecurrentEncoder:
    if place.stack != "encoder":
        raise ValueError("bahdanau: its decoder attends to an encoder, and this model has one stack; take lstm")
    return RecurrentEncoder(spec, place, spec.sizes.d_model, both_ways=True)


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
    Parameters: 4 H (I + H + 1) for each layer and direction, where I inputs lead to H = d_model units (the first
    decoder layer has I = 3 H); 3 H² + H for the attention, 4 H² + H for the readout, and H² (W_s) for each decoder
    layer.
    """
    return replace(spec, stack=bahdanau_encoder, decoder_stack=AttentiveDecoder, bridge=Annotations, position=Position)
