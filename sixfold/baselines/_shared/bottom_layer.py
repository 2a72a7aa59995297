"""The bottom layer of a decoder whose layers all read one attention.

Letters: B rows, L tokens, D model width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from sixfold.baselines._shared.cells import LSTMCell
from sixfold.baselines._shared.global_attention import GlobalAttention
from sixfold.baselines._shared.recurrence import NOT_EXPORTED, unless_padding
from sixfold.core.call import Call
from sixfold.core.dropout import Dropout
from sixfold.core.memory import Memory
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place
from sixfold.core.state import States
from sixfold.spec.spec import Spec


class BottomLayer(ModelPart):
    """h_t = LSTM(h_{t−1}, [y_t; a_{t−1}]), and a_t is the context that h_t attends to. → Drop([h_t; a_t])"""

    not_exported = NOT_EXPORTED

    def __init__(self, spec: Spec, place: Place, attention: Callable[..., GlobalAttention], context: int):
        super().__init__()
        self.place = place.named("cell")
        self.width, self.context = spec.sizes.d_model, context
        self.cell = LSTMCell(self.width + self.context, self.width)
        self.cross = attention(place, state=self.width, memory=self.context)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        source = self.cross.source(call)
        of_word, of_context = self.cell.input.split((self.width, self.context), 1)
        products_LB = F.linear(x.transpose(0, 1), of_word, self.cell.bias)  # (L, B, 4D): for all steps at once

        def update(*state: Tensor) -> tuple[Tensor, States]:
            outputs, looks = [], []
            for i, products in enumerate(products_LB.unbind(0)):
                h, c, context = state
                h, c = self.cell(torch.addmm(products, context, of_context.t()), h, c)
                contexts, weights = self.cross(h[:, None], source, call)
                after = h, c, contexts[:, 0]
                state = after if call.real is None else unless_padding(call.real[:, i], after, state)
                outputs.append(torch.cat([state[0], state[2]], -1))
                looks.append(weights)
            self.cross.show(looks, source, call)
            return torch.stack(outputs, 1), state

        return self.dropout(call.carry(self.place, x, partial(self._first, x=x), update))

    def _first(self, memory: Memory, x: Tensor) -> States:
        zero = x.new_zeros(1, self.width)
        return zero, zero, x.new_zeros(1, self.context)
