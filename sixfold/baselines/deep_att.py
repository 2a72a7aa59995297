"""Deep-Att: deep LSTMs in which a linear path leads from layer to layer beside the states.

Letters: B rows, L tokens, I inputs of a layer, H = d_model units, M width of the memory.
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
from sixfold.baselines._shared.recurrent_stacks import RecurrentLayer, ZeroState, need_encoder
from sixfold.core.call import Call
from sixfold.core.dropout import Dropout
from sixfold.core.init import linear
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.core.real_tokens import RealTokens
from sixfold.core.state import States
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import LastState, Position, run

HALF, ALL = 2, 4  # of the four blocks of f, which lead to the gates i and f, the new content and the gate o
INSIDE, TOP = HALF + 1, ALL + 1  # widths, in H, of what a layer hands on: these blocks and h


def memory_width(sizes: Sizes) -> int:
    """A quarter of f and h of both columns."""
    return 2 * TOP * sizes.d_model // 4


def widths(layers: int, width: int) -> list[tuple[int, int]]:
    """The inputs of each layer, and how many numbers of f it hands on: half of them, the last layer all."""
    inputs = [width, *[INSIDE * width] * (layers - 1)]
    passed = [*[HALF * width] * (layers - 1), ALL * width]
    return list(zip(inputs, passed, strict=True))


# Reading: two columns ------------------------------------------------------------------------------------------


class ColumnLayer(ModelPart):
    """x (B, L, I) → [f; Drop(h)] with f = W x, of which `passed` numbers, and h = LSTM(f), in one direction."""

    not_exported = NOT_EXPORTED

    def __init__(self, spec: Spec, inputs: int, passed: int, from_end: bool):
        super().__init__()
        self.passed, self.from_end = passed, from_end
        self.cell = LSTMCell(inputs, spec.sizes.d_model)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        tokens = RealTokens.of(x, call)
        zero = x.new_zeros(x.shape[0], self.cell.units)
        read = tokens.reversed(tokens.x) if self.from_end else tokens.x
        h, _ = self.cell.read(read, tokens.lengths, (zero, zero))
        h = tokens.back(tokens.reversed(h) if self.from_end else h)
        return torch.cat([F.linear(x, self.cell.input[: self.passed]), self.dropout(h)], -1)


class ColumnEncoder(ModelPart):
    """Two columns, whose layers read in turn from left to right and from right to left. → W_p [f; h of both]"""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        need_encoder("deep_att", place)
        width = spec.sizes.d_model
        self.columns = nn.ModuleList(
            nn.ModuleList(
                ColumnLayer(spec, inputs, passed, from_end=(layer + column) % 2 == 1)
                for layer, (inputs, passed) in enumerate(widths(place.layers, width))
            )
            for column in range(2)
        )
        self.project = linear(2 * TOP * width, memory_width(spec.sizes), bias=False)  # W_p

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        states, columns = [x], [x, x]
        for depth, layers in enumerate(zip(*self.columns, strict=True)):
            at_depth = replace(call, depth=depth)
            columns = [run(layer, column, at_depth) for layer, column in zip(layers, columns, strict=True)]
            states.append(torch.cat(columns, -1))
        return [*states[:-1], self.project(states[-1])], call

    def units(self) -> list[nn.Module]:
        return [part for part in self.columns.modules() if isinstance(part, ColumnLayer)]


class BothColumns(LastState):
    """e_j = W_p [f; h of both columns] for the decoder's attention."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__(spec, place)
        self.memory_width = memory_width(spec.sizes)


# Writing: one column -------------------------------------------------------------------------------------------


class FirstDecoderLayer(ModelPart):
    """f_i = W [y_{i−1}; c_i], h_i = LSTM(f_i), where c_i is the context that h_{i−1} attends to. → [f; Drop(h)]"""

    not_exported = NOT_EXPORTED

    def __init__(self, spec: Spec, place: Place, passed: int):
        super().__init__()
        self.place, self.passed = place.named("cell"), passed
        self.width, self.context = spec.sizes.d_model, memory_width(spec.sizes)
        self.cell = LSTMCell(self.width + self.context, self.width)
        self.cross = AdditiveAttention(place, state=self.width, memory=self.context)
        self.start = ZeroState(self.width)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        source = self.cross.source(call)
        of_word, of_context = self.cell.input.split((self.width, self.context), 1)
        products_LB = F.linear(x.transpose(0, 1), of_word)  # (L, B, 4H): for all steps at once

        def update(*state: Tensor) -> tuple[Tensor, States]:
            outputs, looks = [], []
            for i, products in enumerate(products_LB.unbind(0)):
                contexts, weights = self.cross(state[0][:, None], source, call)
                f = torch.addmm(products, contexts[:, 0], of_context.t())
                after = self.cell(f + self.cell.bias, *state)
                state = after if call.real is None else unless_padding(call.real[:, i], after, state)
                outputs.append(torch.cat([f[:, : self.passed], state[0]], -1))
                looks.append(weights)
            self.cross.show(looks, source, call)
            return torch.stack(outputs, 1), state

        both = call.carry(self.place, x, partial(self.start, x=x), update)
        f, h = both.split((self.passed, self.width), -1)
        return torch.cat([f, self.dropout(h)], -1)


class UpperLayer(ModelPart):
    """x (B, L, I) → [f; Drop(h)] with f = W x, of which `passed` numbers, and h = LSTM(f)."""

    def __init__(self, spec: Spec, place: Place, inputs: int, passed: int):
        super().__init__()
        self.passed = passed
        self.recurrent = RecurrentLayer(spec, place, LSTMCell, ZeroState(spec.sizes.d_model), inputs)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        f = F.linear(x, self.recurrent.cell.forwards.input[: self.passed])
        return torch.cat([f, self.dropout(self.recurrent(x, call))], -1)


class ColumnDecoder(ModelPart):
    """The layer that attends, layers above it, and the readout t_i = W_t [f; h]."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        width = spec.sizes.d_model
        (_, bottom), *above = widths(place.layers, width)
        upper = (UpperLayer(spec, place.at(layer), *each) for layer, each in enumerate(above, start=1))
        self.layers = nn.ModuleList([FirstDecoderLayer(spec, place.at(0), bottom), *upper])
        self.readout = linear(TOP * width, width, bias=False)  # W_t

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        states = [x]
        for depth, layer in enumerate(self.layers):
            states.append(run(layer, states[-1], replace(call, depth=depth)))
        return [*states[:-1], self.readout(states[-1])], call

    def units(self) -> nn.ModuleList:
        return self.layers


# Both ----------------------------------------------------------------------------------------------------------


def deep_att_parameters(sizes: Sizes) -> int:
    d, of, context = sizes.d_model, LSTMCell.parameters_of, memory_width(sizes)
    above = of(INSIDE * d, d)
    encoder = 2 * (of(d, d) + (sizes.encoder_layers - 1) * above) + 2 * TOP * d * context
    decoder = of(d + context, d) + (sizes.decoder_layers - 1) * above + TOP * d * d
    attention = d * (d + context) + d
    return encoder + decoder + attention - plain_stacks(sizes)


@modification("1606.04199", adds=deep_att_parameters)
def deep_att(spec: Spec) -> Spec:
    """Deep-Att: deep LSTMs with fast-forward connections, a path from the first layer to the last without activations.

        f¹_t = W¹ x_t
        fᵏ_t = Wᵏ [Half(fᵏ⁻¹_t); hᵏ⁻¹_t]               4 H numbers, linear in those of the layer below
        hᵏ   = LSTM(fᵏ)                                fᵏ + W_r hᵏ_{t−1} + b are the sums inside the gates
        e_j  = W_p [fⁿ_j; hⁿ_j of both columns]        the memory: 5 H / 2 numbers, a quarter
        f¹_i = W [y_{i−1}; c_i]                        in the decoder; c_i = Σ_j α_ij e_j
        α_i  = softmax_j(vᵀ tanh(W_s h¹_{i−1} + U e_j))
        t_i  = W_t [fᵐ_i; hᵐ_i]                        from which the next word is predicted

    The encoder has two columns, each with weights of its own. One reads from left to right in layers 1, 3, 5 … and from
    right to left in layers 2, 4, 6 …; the other reads the opposite way:

        layer 3    →  h  →        ←  h  ←
        layer 2    ←  h  ←        →  h  →
        layer 1    →  h  →        ←  h  ←

    Half takes the first 2 H of the 4 H numbers: those that lead to the gates i and f. The gradient reaches the first
    layer along f without passing a gate. If the columns of Wᵏ that read f are zero, a stack of ordinary LSTMs is left.
    Dropout acts on h, where it leads upwards. The decoder has one column and starts with zeros; its first layer
    computes one word after the other in training, the layers above it read all words by a fused kernel. The attention
    has one head, "decoder.0.cross", with H units. Layers are as many as the sizes say (the paper has 9 and 7, of width
    512; its embeddings have 256 numbers, here they have H = d_model). There are no positions; heads and d_ff are not
    used. The paper replaces unknown words by the source word that was looked at: `decoding.replace_unknown`.
    Parameters: 4 H (I + H + 1) for each layer of each column, where I is H in the first layer and 3 H in the others,
    in the decoder's first 7 H / 2; 25 H² for W_p, 5 H² for W_t, and 7 H² / 2 + H for the attention.
    """
    return replace(spec, stack=ColumnEncoder, decoder_stack=ColumnDecoder, bridge=BothColumns, position=Position)
