"""ConvS2S: gated convolutions, with attention in every decoder layer.

Letters: S sentences, B rows, L tokens, n source length, D model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.baselines._shared.plain_parameters import plain_stacks
from sixfold.baselines._shared.weight_norm import NormedLinear, normed_parameters
from sixfold.baselines._shared.windows import windows
from sixfold.core.call import Call
from sixfold.core.dropout import Dropout
from sixfold.core.masks import Sight
from sixfold.core.memory import Memory
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.modifications.learned_positions import LearnedPositions
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import NO_POSITION, LastState, TokenEmbedding, TokenInput, run, weigh

HALF = math.sqrt(0.5)  # the sum of two terms of variance v has the variance v again
SMALL = 0.1  # the standard deviation of words and positions at the start


class SmallInput(TokenInput):
    """Drop(0.1 √D · E[id] + P[t]): products of two such vectors are small, so attention begins almost uniform."""

    def forward(self, ids: Tensor, table: TokenEmbedding, call: Call) -> tuple[Tensor, Call]:
        x = self.dropout(self.position.embed(SMALL * table(ids), call))
        return x, replace(call, position=self.position.prepare(x, call), positioner=self.position)


# Layers -----------------------------------------------------------------------------------------------------


class GatedWindows(ModelPart):
    """A ⊙ σ(B), where [A; B] = conv(Drop(x))"""

    def __init__(self, spec: Spec, place: Place, width: int):
        super().__init__()
        channels, rate = spec.sizes.d_model, spec.sizes.dropout
        self.place, self.width = place.named("convolution"), width
        self.dropout = Dropout(rate)
        # A gate of about ½ leaves a quarter of the variance, and dropout multiplies it by 1 / (1 − p).
        self.map_of_windows = NormedLinear(width * channels, 2 * channels, gain=2 * math.sqrt(1 - rate))

    def forward(self, x: Tensor, call: Call) -> Tensor:
        return F.glu(self.map_of_windows(windows(self.dropout(x), call, self.place, self.width)))


class ConvolutionLayer(nn.Module):
    """(x + GLU(conv(Drop(x)))) √½"""

    def __init__(self, spec: Spec, place: Place, width: int):
        super().__init__()
        self.convolution = GatedWindows(spec, place, width)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        return (x + self.convolution(x, call)) * HALF


class ConvolutionAndAttention(nn.Module):
    """(x + attend(GLU(conv(Drop(x))))) √½"""

    def __init__(self, spec: Spec, place: Place, width: int):
        super().__init__()
        self.convolution = GatedWindows(spec, place, width)
        self.cross = MultiStepAttention(spec, place)

    def forward(self, x: Tensor, call: Call, **read: Tensor) -> Tensor:
        return (x + self.cross(self.convolution(x, call), call, **read)) * HALF


class MultiStepAttention(ModelPart):
    """(h + W_c Σ_j a_j v_j) √½, where a = softmax_j(d · z_j) and d = (W_d h + g) √½. Each map has a bias."""

    map = "softmax"

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        width = spec.sizes.d_model
        self.place, self.heads = place.named("cross"), 1
        self.query, self.output = NormedLinear(width, width), NormedLinear(width, width)  # W_d, W_c

    def forward(self, h: Tensor, call: Call, embedded: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """h and g, the embedded words: (B, L, D); z and v: (S, n, D). → (B, L, D)"""
        d = (self.query(h) + embedded) * HALF
        q, k, v = (each[:, None] for each in (d * math.sqrt(d.shape[-1]), keys, values))  # `weigh` divides q by √D
        context = weigh(self.place, call, q, k, v, Sight.among(call.memory.real, causal=False), NO_POSITION)
        return (h + self.output(context[:, 0])) * HALF


# Stacks -----------------------------------------------------------------------------------------------------


class ConvolutionStack(ModelPart):
    """A linear map, layer upon layer, a linear map. → the states before and after each layer; and the call."""

    layer: Callable[..., nn.Module] = ConvolutionLayer

    def __init__(self, spec: Spec, place: Place, width: int):
        super().__init__()
        channels, rate = spec.sizes.d_model, spec.sizes.dropout
        self.first = NormedLinear(channels, channels, gain=math.sqrt(1 - rate))
        self.layers = nn.ModuleList(self.layer(spec, place.at(i), width) for i in range(place.layers))
        self.last = NormedLinear(channels, channels)
        self.dropout = Dropout(rate)

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        return self.through_layers(x, call), call

    def through_layers(self, x: Tensor, call: Call, **read: Tensor) -> list[Tensor]:
        """The states before and after each layer; `read` are further tensors that every layer reads."""
        states = [self.first(x)]
        for depth, layer in enumerate(self.layers):
            states.append(run(partial(layer, **read), states[-1], replace(call, depth=depth)))
        return [*states[:-1], self.dropout(self.last(states[-1]))]

    def units(self) -> nn.ModuleList:
        return self.layers


class ConvolutionEncoder(ConvolutionStack):
    """z_1 … z_n, the keys of the decoder's attention. Its values √n (z_j + e_j) √½ are in the memory's tokens."""

    def __init__(self, spec: Spec, place: Place, width: int):
        super().__init__(spec, place, width)
        self.dropout = Dropout(0.0)
        self.readers = spec.sizes.decoder_layers

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        *below, z = self.through_layers(x, call)
        z = with_gradient_times(z, 1 / (2 * self.readers))
        values = (z + x) * HALF * root_of_length(x, call.real)
        return [*below, z], replace(call, memory=Memory((), None, tokens={"values": values}))


class ConvolutionDecoder(ConvolutionStack):
    """Layers that attend. All read the embedded words, and the same keys and values."""

    layer = ConvolutionAndAttention

    def __init__(self, spec: Spec, place: Place, width: int):
        super().__init__(spec, place, width)
        self.source = place.named("source")

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        keys, values = call.keep_for_sentences(self.source, lambda *kept: kept, of=("states", "values"))
        return self.through_layers(x, call, embedded=x, keys=keys, values=values), call


class KeysOfAllLayers(LastState):
    """Every decoder layer has z_1 … z_n as keys."""


def with_gradient_times(x: Tensor, factor: float) -> Tensor:
    """x, whose gradient is multiplied by the factor."""
    fixed = x.detach()
    return fixed + factor * (x - fixed)


def root_of_length(x: Tensor, real: Tensor | None) -> Tensor | float:
    """√n of each source (S, n, D), without its padding."""
    return math.sqrt(x.shape[1]) if real is None else real.sum(1).to(x.dtype).sqrt()[:, None, None]


def stack(spec: Spec, place: Place, width: int) -> ConvolutionStack:
    return (ConvolutionEncoder if place.stack == "encoder" else ConvolutionStack)(spec, place, width)


def conv_s2s_parameters(sizes: Sizes, width: int = 3, length: int = 512) -> int:
    d = sizes.d_model
    layer, square = normed_parameters(width * d, 2 * d), normed_parameters(d, d)
    layers = (sizes.encoder_layers + sizes.decoder_layers) * layer + sizes.decoder_layers * 2 * square
    return layers + 4 * square + 2 * length * d - plain_stacks(sizes)


@modification("1705.03122", adds=conv_s2s_parameters, most={"width": 99, "length": 1_000_000})
def conv_s2s(spec: Spec, *, width: int = 3, length: int = 512) -> Spec:
    """ConvS2S: gated convolutions in encoder and decoder, and attention in every layer of the decoder.

        e_t, g_t   = E[id] + P[t]                               of the source, of the target; N(0, 0.1²) each
        [A; B]     = conv(x),   GLU = A ⊙ σ(B)                  conv: `width` words, d_model → 2·d_model
        encoder    x ← (x + GLU) √½                             z_1 … z_n: its output
        decoder    x ← (x + (GLU + W_c c + b_c) √½) √½
                   c_i  = √n Σ_j a_ij (z_j + e_j) √½,   a_i = softmax_j(d_i · z_j)
                   d_i  = (W_d GLU_i + b_d + g_i) √½            no 1/√K

    A sum of two terms is multiplied by √½, which keeps its variance; a mean of n values by √n, for the length n of the
    source without padding. Gradients of z are multiplied by 1 / (2 · decoder layers), since as many layers read it.
    The window of a word has it in the middle, in a decoder at its end. A linear map comes before the first layer and
    after the last. Each matrix has weight normalisation, W_i = g_i v_i/‖v_i‖; only the table of words has none, nor has
    the output a bias. Dropout p acts on the embeddings, on the input of each convolution, and on the decoder's output;
    rows of a convolution start with the length 2 √(1 − p). States start small, with a standard deviation of about 0.14,
    so a short training wants a larger learning rate than the plain Transformer's.
    The attention of layer i has one head, "decoder.i.cross". A model with one stack has the layers without attention,
    as a language model or as an encoder. While a text is written, each layer keeps its last `width` − 1 inputs. There
    is a position's vector up to `length`; a longer text is an error. The layers of the paper become wider from bottom
    to top (512 to 2048); here all have d_model, since a modification never changes sizes. heads and d_ff are not used.
    Parameters: 2 w D² + 4 D for each layer, with D = d_model and w = `width`; D² + 2 D for each linear map, of which
    each decoder layer and each stack have two; length · D for the positions of a stack.
    """
    if width < 1 or length < 1:
        raise ValueError(f"conv_s2s: width and length must be at least 1, got {width} and {length}")
    made = partial(stack, width=width)
    return replace(
        spec,
        input=SmallInput,
        position=partial(LearnedPositions, length=length, std=SMALL),
        stack=made,
        decoder_stack=partial(ConvolutionDecoder, width=width),
        bridge=KeysOfAllLayers,
    )
