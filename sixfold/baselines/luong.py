"""An LSTM encoder-decoder that attends to the source after the LSTM of each word.

Letters: B rows, L tokens, D model width, N layers of the decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.baselines._shared.cells import LSTMCell
from sixfold.baselines._shared.global_attention import (
    AdditiveAttention,
    AttendedSource,
    DotAttention,
    GeneralAttention,
    GlobalAttention,
)
from sixfold.baselines._shared.plain_parameters import plain_stacks
from sixfold.baselines._shared.recurrence import NOT_EXPORTED, unless_padding
from sixfold.baselines._shared.recurrent_stacks import (
    EncoderState,
    RecurrentEncoder,
    begun_by_encoder,
    need_encoder,
)
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

SCORES: dict[str, Callable[..., GlobalAttention]] = {
    "dot": DotAttention,
    "general": GeneralAttention,
    "concat": AdditiveAttention,  # W [h_t; h̄_s] is the sum of a product with h_t and one with h̄_s
}


class AttentionalState(ModelPart):
    """h̃_t = Drop(tanh(W_c [c_t; h_t])), where c_t is the context that h_t attends to."""

    def __init__(self, spec: Spec, place: Place, score: str):
        super().__init__()
        width = spec.sizes.d_model
        self.cross = SCORES[score](place, state=width, memory=width)
        self.combine = linear(2 * width, width, bias=False)  # W_c
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, h: Tensor, source: AttendedSource, call: Call) -> tuple[Tensor, Tensor]:
        """h (B, L, D) → h̃ (B, L, D), and the weights (B, L, n)."""
        contexts, weights = self.cross(h, source, call)
        return self.dropout(self.combine(torch.cat([contexts, h], -1)).tanh()), weights


class AfterAll(ModelPart):
    """h̃ of all tokens at once, after the LSTMs of all."""

    def __init__(self, spec: Spec, place: Place, score: str):
        super().__init__()
        self.attend = AttentionalState(spec, place, score)

    def forward(self, h: Tensor, call: Call) -> Tensor:
        source = self.attend.cross.source(call)
        attentional, weights = self.attend(h, source, call)
        self.attend.cross.show([weights], source, call)
        return attentional


class PlainDecoder(ModelPart):
    """LSTM upon LSTM, and the attention above them. Dropout between layers."""

    def __init__(self, spec: Spec, place: Place, score: str):
        super().__init__()
        self.layers = begun_by_encoder(spec, place, LSTMCell)
        self.top = AfterAll(spec, place, score)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        states = [x]
        for depth, layer in enumerate(self.layers):
            below = states[-1] if depth == 0 else self.dropout(states[-1])
            states.append(run(layer, below, replace(call, depth=depth)))
        states.append(run(self.top, states[-1], call))
        return states, call

    def units(self) -> list[nn.Module]:
        return [*self.layers, self.top]


class WordByWord(ModelPart):
    """All layers and the attention for one word, then for the next, whose first layer reads [y_t; h̃_{t−1}].

    Its state is h and c of each layer, and h̃.
    """

    not_exported = NOT_EXPORTED

    def __init__(self, spec: Spec, place: Place, score: str):
        super().__init__()
        self.place, self.width = place.named("cells"), spec.sizes.d_model
        self.first = LSTMCell(2 * self.width, self.width)
        self.above: Any = nn.ModuleList(LSTMCell(self.width, self.width) for _ in range(place.layers - 1))
        self.starts = nn.ModuleList(EncoderState(spec, place.at(i), LSTMCell) for i in range(place.layers))
        self.attend = AttentionalState(spec, place, score)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        source = self.attend.cross.source(call)
        of_word, of_fed = self.first.input.split(self.width, 1)
        products_LB = F.linear(x.transpose(0, 1), of_word, self.first.bias)  # (L, B, 4D): for all steps at once

        def update(*state: Tensor) -> tuple[Tensor, States]:
            outputs, looks = [], []
            for i, products in enumerate(products_LB.unbind(0)):
                *layers, fed = state
                h, after = self._layers(torch.addmm(products, fed, of_fed.t()), layers)
                attentional, weights = self.attend(h[:, None], source, call)
                after = (*after, attentional[:, 0])
                state = after if call.real is None else unless_padding(call.real[:, i], after, state)
                outputs.append(state[-1])
                looks.append(weights)
            self.attend.cross.show(looks, source, call)
            return torch.stack(outputs, 1), state

        return call.carry(self.place, x, partial(self._first, x=x), update)

    def _layers(self, products: Tensor, state: list[Tensor]) -> tuple[Tensor, States]:
        """One step of all LSTMs: h of the last, and the state after it."""
        h, c = self.first(products, *state[:2])
        after = [h, c]
        for layer, cell in enumerate(self.above, start=1):
            h, c = cell(cell.products(self.dropout(h)), *state[2 * layer : 2 * layer + 2])
            after += [h, c]
        return h, tuple(after)

    def _first(self, memory: Memory, x: Tensor) -> States:
        """The encoder's states, and h̃_0 = 0."""
        layers = [state for start in self.starts for state in start(memory, x)]
        return *layers, torch.zeros_like(layers[0])


class FeedingDecoder(ModelPart):
    """A decoder whose words are computed one after the other."""

    def __init__(self, spec: Spec, place: Place, score: str):
        super().__init__()
        self.steps = WordByWord(spec, place, score)

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        return [x, run(self.steps, x, call)], call

    def units(self) -> list[nn.Module]:
        return [self.steps]


def luong_encoder(spec: Spec, place: Place) -> RecurrentEncoder:
    need_encoder("luong", place)
    return RecurrentEncoder(spec, place, LSTMCell, spec.sizes.d_model, both_ways=False)


def luong_parameters(sizes: Sizes, score: str = "general", input_feeding: bool = True) -> int:
    d, of = sizes.d_model, LSTMCell.parameters_of
    attention = {"dot": 0, "general": d * d, "concat": 2 * d * d + d}[score]
    layers, fed = sizes.encoder_layers + sizes.decoder_layers, 4 * d * d if input_feeding else 0
    return layers * of(d, d) + fed + attention + 2 * d * d - plain_stacks(sizes)


@modification("1508.04025", adds=luong_parameters)
def luong(spec: Spec, *, score: Literal["dot", "general", "concat"] = "general", input_feeding: bool = True) -> Spec:
    """An LSTM encoder-decoder with Luong's global attention: the state after a word looks at the source.

        h_t  = LSTM(h_{t−1}, [y_t; h̃_{t−1}])         N layers, which start with the encoder's last states; h̃_0 = 0
        α_ts = softmax_s(score(h_t, h̄_s)),   c_t = Σ_s α_ts h̄_s
        h̃_t  = tanh(W_c [c_t; h_t])                  from which the next word is predicted

        score = dot        h_tᵀ h̄_s
                general    h_tᵀ W h̄_s
                concat     vᵀ tanh(W [h_t; h̄_s])

    h̄_s are the states of the last layer of an encoder that reads from left to right. The query is the current state of
    the last layer (bahdanau's is the state before the word), and scores have no bias. With input feeding the first
    layer reads h̃ of the word before beside the word, so that it knows where the attention has been; in training, words
    are then computed one after the other. With `input_feeding=false` the LSTMs read all words by a fused kernel, and
    the attention is computed for all at once. Dropout acts between layers and on h̃. The attention has one head,
    "decoder.0.cross". Local attention, which the paper has, too, is left out. There are no positions; heads and d_ff
    are not used.
    Parameters: 4 H (I + H + 1) for each layer, where I inputs lead to H = d_model units (with input feeding, the first
    decoder layer has I = 2 H); for the score 0, H², or 2 H² + H; 2 H² for W_c.
    """
    decoder = partial(FeedingDecoder if input_feeding else PlainDecoder, score=score)
    return replace(spec, stack=luong_encoder, decoder_stack=decoder, bridge=LastState, position=Position)
