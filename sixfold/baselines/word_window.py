"""The word-window model: each state is made of a word and its neighbours."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from sixfold.baselines._shared.plain_parameters import plain_encoder
from sixfold.baselines._shared.windows import windows
from sixfold.core.call import Call
from sixfold.core.dropout import Dropout
from sixfold.core.init import Glorot, declare, linear
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.modifications.post_norm import no_norm
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Position, Sinusoid, final_norm

MOST_NEIGHBOURS = 100


class WindowLayer(ModelPart):
    """Drop(tanh(W [x_{t−c}; …; x_{t+c}] + b)); in a language model, the window ends with x_t."""

    def __init__(self, spec: Spec, place: Place, radius: int):
        super().__init__()
        width = spec.sizes.d_model
        self.place = place.named("window")
        self.width = radius + 1 if place.causal else 2 * radius + 1
        self.matrix = linear(self.width * width, width)  # W and b
        declare(self.matrix.weight, Glorot())
        self.dropout = Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        return self.dropout(self.matrix(windows(x, call, self.place, self.width)).tanh())


def positions(spec: Spec, place: Place) -> Position:
    """Only an encoder-decoder's decoder, which is the plain one, needs positions."""
    return (Sinusoid if place.stack == "decoder" else Position)(spec, place)


def final(spec: Spec, place: Place) -> nn.Module:
    return (final_norm if place.stack == "decoder" else no_norm)(spec, place)


def word_window_parameters(sizes: Sizes, radius: int = 2) -> int:
    d = sizes.d_model
    return sizes.encoder_layers * ((2 * radius + 1) * d * d + d) - plain_encoder(sizes)


@modification(adds=word_window_parameters, most={"radius": MOST_NEIGHBOURS})
def word_window(spec: Spec, *, radius: int = 2) -> Spec:
    """A word-window model: each state is a hidden layer over a word and its neighbours, without attention.

        y_t = tanh(W [x_{t−c}; …; x_t; …; x_{t+c}] + b)      c = radius
        y_t = tanh(W [x_{t−c}; …; x_t] + b)                  in a language model, where y_t predicts x_{t+1}

    The words of a window are side by side, so that W has a matrix of its own for each place in the window; beyond the
    text there are zeros. In layers on top of each other, the states of layer l depend on l·c words at each side.
    Dropout acts after each layer.
    An encoder alone classifies texts or predicts masked words from their windows. A decoder alone is a language model
    with a fixed window: a word is predicted from the 1 + l·c words before it, and while a text is written only the last
    c inputs of each layer are kept. In an encoder-decoder the encoder has windows, and the decoder is the plain
    Transformer's, with its sinusoids: windows alone can't connect two texts. A window knows the order of its words, so
    there are no other positions; heads and d_ff are not used by window layers.
    Parameters: (2c + 1) D² + D for each layer, in a language model (c + 1) D² + D, with D = d_model.
    """
    if radius < 1:
        raise ValueError(f"word_window: radius must be at least 1, got {radius}")
    return replace(spec, encoder_layer=partial(WindowLayer, radius=radius), final=final, position=positions)
