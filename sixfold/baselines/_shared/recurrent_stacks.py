"""Stacks of a recurrent cell: an encoder, and a decoder that begins with the encoder's last state.

Letters: S sentences, B rows, L tokens, D model width, which is also the number of a decoder's units.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from sixfold.baselines._shared.cells import Cell, LSTMCell
from sixfold.baselines._shared.plain_parameters import plain_stacks
from sixfold.baselines._shared.recurrence import Recurrence
from sixfold.core.call import Call
from sixfold.core.dropout import Dropout
from sixfold.core.memory import Memory
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.core.state import States
from sixfold.spec.spec import Spec
from sixfold.transformer import LastState, Position, run

# Reading: the encoder ---------------------------------------------------------------------------------------


class RecurrentEncoderLayer(ModelPart):
    """Drop(h_1 … h_n), with both ways [→h_j; ←h_j]; and the state at the end of each direction."""

    def __init__(self, spec: Spec, cell: type[Cell], inputs: int, units: int, both_ways: bool):
        super().__init__()
        self.cell = Recurrence(cell, inputs, units, both_ways=both_ways)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> tuple[Tensor, States]:
        y, state = self.cell(x, self.cell.zeros(x), call)
        return self.dropout(y), state


class RecurrentEncoder(ModelPart):
    """Layer upon layer. The memory's sentences are the layers' states at the end, by name: "h" is (S, layers, ·)."""

    def __init__(self, spec: Spec, place: Place, cell: type[Cell], units: int, both_ways: bool):
        super().__init__()
        width = units * (2 if both_ways else 1)
        inputs = [spec.sizes.d_model, *[width] * (place.layers - 1)]
        self.names = cell.state
        self.layers = nn.ModuleList(RecurrentEncoderLayer(spec, cell, each, units, both_ways) for each in inputs)

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        states, ends = [x], []
        for depth, layer in enumerate(self.layers):
            y, end = run(layer, states[-1], replace(call, depth=depth))
            states.append(y)
            ends.append(end)
        by_name = zip(self.names, zip(*ends, strict=True), strict=True)
        sentences = {name: torch.stack(of_layers, 1) for name, of_layers in by_name}
        return states, replace(call, memory=Memory((), None, sentences=sentences))

    def units(self) -> nn.ModuleList:
        return self.layers


class Bottleneck(LastState):
    """The decoder reads no state of a token: the encoder's last ones are in the memory's sentences."""


# Writing: the decoder --------------------------------------------------------------------------------------------


class EncoderState(nn.Module):
    """The end of the encoder's layer at the same height, counted from the top; without an encoder, zeros."""

    def __init__(self, spec: Spec, place: Place, cell: type[Cell]):
        super().__init__()
        assert place.layer is not None
        self.layer = max(0, spec.sizes.encoder_layers - place.layers + place.layer)
        self.width, self.names = spec.sizes.d_model, cell.state

    def forward(self, memory: Memory | None, x: Tensor) -> States:
        if memory is None:
            return (x.new_zeros(1, self.width),) * len(self.names)
        return tuple(memory.sentences[name][:, self.layer] for name in self.names)


class ZeroState(nn.Module):
    """Zeros before the first token: the attention alone connects the decoder with the source."""

    def __init__(self, width: int, cell: type[Cell] = LSTMCell):
        super().__init__()
        self.width, self.names = width, cell.state

    def forward(self, memory: Memory | None, x: Tensor) -> States:
        return (x.new_zeros(1, self.width),) * len(self.names)


class RecurrentLayer(ModelPart):
    """h_1 … h_L, from left to right. `start`: (memory, x) → the state before the first token."""

    def __init__(self, spec: Spec, place: Place, cell: type[Cell], start: nn.Module, inputs: int = 0):
        super().__init__()
        self.place = place.named("cell")
        self.cell = Recurrence(cell, inputs or spec.sizes.d_model, spec.sizes.d_model)
        self.start = start

    def forward(self, x: Tensor, call: Call) -> Tensor:
        def update(*state: Tensor) -> tuple[Tensor, States]:
            return self.cell(x, state, call)

        return call.carry(self.place, x, partial(self.start, x=x), update)


def begun_by_encoder(spec: Spec, place: Place, cell: type[Cell]) -> nn.ModuleList:
    """The layers of a decoder, each of which starts with the encoder's state."""
    places = [place.at(layer) for layer in range(place.layers)]
    return nn.ModuleList(RecurrentLayer(spec, at, cell, EncoderState(spec, at, cell)) for at in places)


class RecurrentDecoder(ModelPart):
    """Layer upon layer, without a look at the source: all that is known of it is where the layers start."""

    def __init__(self, spec: Spec, place: Place, cell: type[Cell]):
        super().__init__()
        self.layers = begun_by_encoder(spec, place, cell)
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        states = [x]
        for depth, layer in enumerate(self.layers):
            states.append(self.dropout(run(layer, states[-1], replace(call, depth=depth))))
        return states, call

    def units(self) -> nn.ModuleList:
        return self.layers


def need_encoder(name: str, place: Place) -> None:
    """Raise a ValueError in a model with one stack, which has nothing to attend to."""
    if place.stack == "only":
        raise ValueError(f"{name}: its decoder attends to an encoder, and this model has one stack; take lstm")


# Both ------------------------------------------------------------------------------------------------------------


def with_recurrent_stacks(spec: Spec, cell: type[Cell], bidirectional: bool) -> Spec:
    """The cell in place of every stack, with the bottleneck between encoder and decoder."""
    stack = partial(_stack, cell=cell, bidirectional=bidirectional)
    return replace(spec, stack=stack, decoder_stack=stack, bridge=Bottleneck, position=Position)


def _stack(spec: Spec, place: Place, cell: type[Cell], bidirectional: bool) -> RecurrentEncoder | RecurrentDecoder:
    """A causal stack has one direction. Other stacks have two, of d_model/2 units each, if `bidirectional`."""
    if place.causal:
        return RecurrentDecoder(spec, place, cell)
    width = spec.sizes.d_model
    if bidirectional and width % 2:
        raise ValueError(
            f"two directions share d_model {width}, which is odd; choose an even one, or bidirectional=false"
        )
    return RecurrentEncoder(spec, place, cell, width // 2 if bidirectional else width, bidirectional)


def added_parameters(sizes: Sizes, cell: type[Cell], bidirectional: bool = True) -> int:
    """What `with_recurrent_stacks` adds to the plain encoder-decoder."""
    d, of = sizes.d_model, cell.parameters_of
    encoder_layer = 2 * of(d, d // 2) if bidirectional else of(d, d)
    return sizes.encoder_layers * encoder_layer + sizes.decoder_layers * of(d, d) - plain_stacks(sizes)
