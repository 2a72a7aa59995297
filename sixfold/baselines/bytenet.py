"""ByteNet: dilated convolutions, with the decoder on top of the encoder in place of attention.

Letters: S sentences, w hypotheses of each, B = S·w rows, L tokens, n length of the unfolded source, D model width.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.baselines._shared.plain_parameters import plain_stacks
from sixfold.baselines._shared.windows import windows
from sixfold.core.attention_kernels import fold, unfold
from sixfold.core.call import Call
from sixfold.core.dropout import Dropout
from sixfold.core.init import linear, truncated
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.core.real_tokens import RealTokens, pick
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import LastState, Position, Stack, layer_norm

DILATIONS = (1, 2, 4, 8, 16)


class Block(ModelPart):
    """x + Drop(W₃ φ(Norm(conv(φ(Norm(W₁ φ(Norm(x))))))): inside, it has half the width of x."""

    def __init__(self, spec: Spec, place: Place, width: int, dilations: tuple[int, ...]):
        super().__init__()
        assert place.layer is not None
        outer = spec.sizes.d_model
        if outer % 2:
            raise ValueError(f"bytenet: a block has half of d_model inside, and {outer} is odd; choose an even one")
        inner = outer // 2
        self.place, self.width = place.named("convolution"), width
        self.dilation = dilations[place.layer % len(dilations)]
        self.norms = nn.ModuleList(nn.LayerNorm(each, eps=1e-6) for each in (outer, inner, inner))
        self.narrow = linear(outer, inner, truncated)  # W₁
        self.convolution = linear(width * inner, inner, truncated)
        self.widen = linear(inner, outer, truncated)  # W₃
        self.activation, self.dropout = spec.activation, Dropout(spec.sizes.dropout)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        first, second, third = self.norms
        y = self.narrow(self.activation(first(x)))
        y = windows(self.activation(second(y)), call, self.place, self.width, self.dilation)
        y = self.widen(self.activation(third(self.convolution(y))))
        return x + self.dropout(y)


# Reading: the encoder ---------------------------------------------------------------------------------------


class Unfolding:
    """The length ⌈a|s|⌉ + b for which a source of length |s| is encoded, in exact arithmetic."""

    def __init__(self, a: float, b: int):
        self.a, self.b = Fraction(str(a)), b

    def length(self, n: Any) -> Any:
        """Of a source of n tokens: a number, or a tensor of them."""
        return -(-n * self.a.numerator // self.a.denominator) + self.b

    def __call__(self, x: Tensor, call: Call) -> tuple[Tensor, Call]:
        """x (S, ·, D), with zeros after its real tokens up to the length; they count as tokens."""
        tokens = RealTokens.of(x, call)
        length = self.length(x.shape[1])
        positions = torch.arange(length, device=x.device)[None]
        real = None if tokens.lengths is None else positions < self.length(tokens.lengths)[:, None]
        x = F.pad(tokens.x, (0, 0, 0, length - x.shape[1]))
        return x, call.for_sequence(x, real, positions)


class UnfoldedEncoder(Stack):
    """Blocks over the source and the zeros that follow it."""

    keeps_length = False

    def __init__(self, spec: Spec, place: Place, unfolding: Unfolding):
        super().__init__(spec, place)
        self.unfolding = unfolding

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        return super().forward(*self.unfolding(x, call))


class UnderDecoder(LastState):
    """The decoder reads the encoder's last states once, below its first layer."""


# Writing: the decoder --------------------------------------------------------------------------------------------


def at_positions(states_SnD: Tensor, call: Call, rows: int) -> Tensor:
    """The encoder's state at the position of each token; beyond the unfolded source, zeros. → (B, L, D)"""
    (sentences, length), real = states_SnD.shape[:2], call.memory.real
    position_Sp = fold(call.positions.expand(rows, -1)[:, None, :, None], sentences)[:, 0, :, 0]  # p = w·L
    lengths = length if real is None else real.sum(1, keepdim=True)
    found_SpD = pick(states_SnD, position_Sp.clamp(max=length - 1)) * (position_Sp < lengths)[..., None]
    return unfold(found_SpD[:, None], rows)[:, 0]


class StackedDecoder(Stack):
    """Blocks over W [y_t; s_t] + b, the word and the encoder's state at its position."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__(spec, place)
        self.below = place.named("encoder")
        self.join = linear(2 * spec.sizes.d_model, spec.sizes.d_model)

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        (states,) = call.keep_for_sentences(self.below, lambda states: (states,))
        return super().forward(self.join(torch.cat([x, at_positions(states, call, x.shape[0])], -1)), call)


# Both ------------------------------------------------------------------------------------------------------------


def stack(spec: Spec, place: Place, unfolding: Unfolding) -> Stack:
    """A single stack has no decoder on top of it, for which it would have to be unfolded."""
    return UnfoldedEncoder(spec, place, unfolding) if place.stack == "encoder" else Stack(spec, place)


def bytenet_parameters(sizes: Sizes, width: int = 3, **rest: Any) -> int:
    outer, inner = sizes.d_model, sizes.d_model // 2
    norms, biases = 2 * outer + 4 * inner, 2 * inner + outer
    block = 2 * outer * inner + width * inner**2 + norms + biases
    join, finals = 2 * outer**2 + outer, 4 * outer
    return (sizes.encoder_layers + sizes.decoder_layers) * block + join + finals - plain_stacks(sizes)


@modification("1610.10099", adds=bytenet_parameters, most={"width": 99, "dilations": 1000, "a": 10, "b": 1000})
def bytenet(spec: Spec, *, width: int = 3, dilations: tuple[int, ...] = DILATIONS, a: float = 1.2, b: int = 0) -> Spec:
    """ByteNet: dilated convolutions, whose decoder stands on the encoder: it reads one state of it for each word.

        block      x ← x + W₃ φ(Norm(conv_r(φ(Norm(W₁ φ(Norm(x)))))))       φ = relu, inside with d_model/2 channels
        conv_r     y_t = W₂ [x_{t−r}; x_t; x_{t+r}],  in a decoder  W₂ [x_{t−2r}; x_{t−r}; x_t]
        encoder    s = blocks([x_1 … x_|s|, 0 … 0])                          ⌈a|s|⌉ + b states
        decoder    h_t = blocks(W [y_t; s_t] + b),   s_t = 0 beyond the encoder's states

    There is no attention: a word reads the one state of the encoder that stands at its position. So the source is
    followed by zeros up to ⌈a|s|⌉ + b, the expected length of the target, and the blocks move what is needed to its
    place. The output may be longer: the decoder goes on until it writes the end (dynamic unfolding). Time and memory
    are linear in the length of both texts, and while a text is written each block keeps its last (w−1)·r inputs.
    Block i has the i-th of `dilations` as r, beginning again at the end of the list; 1/2/4/8/16 is the paper's, which
    has six such sets in 30 blocks. A state depends on 1 + (w−1) Σ r tokens: those around it, in a decoder those up to
    it. `width` (w) is odd. There is a norm after the last block, and dropout acts on the output of each.
    An encoder alone and a decoder alone (a language model) are the same blocks, without unfolding. The paper's text is
    characters, and its language model has multiplicative units in its blocks. There are no positions; heads and d_ff
    are not used. An `activation` such as gelu replaces relu.
    Parameters: (1 + w/4) D² + 6 D for each block, with D = d_model; 2 D² + D for W, and 2 D for each last norm.
    """
    _check(width, dilations, a, b)
    block = partial(Block, width=width, dilations=dilations)
    return replace(
        spec,
        encoder_layer=block,
        decoder_layer=block,
        stack=partial(stack, unfolding=Unfolding(a, b)),
        decoder_stack=StackedDecoder,
        bridge=UnderDecoder,
        final=layer_norm,
        position=Position,
    )


def _check(width: int, dilations: tuple[int, ...], a: float, b: int) -> None:
    """Raise a ValueError unless these are options of ByteNet."""
    if width < 1 or width % 2 == 0:
        raise ValueError(f"bytenet: width must be an odd number such as 3, got {width}")
    if not dilations or min(dilations) < 1:
        raise ValueError(
            f"bytenet: dilations must be at least 1, such as 1/2/4/8/16, got {'/'.join(map(str, dilations))!r}"
        )
    if not a >= 1:
        raise ValueError(f"bytenet: a must be at least 1, since the encoder has a state for each source token; got {a}")
    if b < 0:
        raise ValueError(f"bytenet: b must be at least 0, got {b}")
