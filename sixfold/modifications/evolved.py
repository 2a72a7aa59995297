"""The Evolved Transformer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.core.call import Call
from sixfold.core.init import Glorot, Normal, linear, parameter, truncated
from sixfold.core.place import Place, Sizes
from sixfold.modifications._shared.convolution import convolve, lay_out
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def widened(y: Tensor, width: int) -> Tensor:
    """y padded with zero channels to `width`, so that branches of different width can be added."""
    return F.pad(y, (0, width - y.shape[-1]))


def norm(spec: Spec, place: Place, width: int) -> nn.Module:
    """The chosen norm, for another width than the model's."""
    return spec.norm(Spec(sizes=replace(spec.sizes, d_model=width), norm=spec.norm), place)


class Convolution(nn.Module):
    """y_t = b + Σ_j x_(t+j) W_j over a window of `width` tokens."""

    def __init__(self, place: Place, width: int, channels: int, out: int):
        super().__init__()
        self.place, self.width = place, width
        self.weight, self.bias = parameter((out, channels, width), Glorot()), nn.Parameter(torch.zeros(out))

    def forward(self, x: Tensor, call: Call) -> Tensor:
        strip = lay_out(x, call, self.place, self.width)
        return strip.new.back(F.conv1d(strip.reached.transpose(1, 2), self.weight, self.bias).transpose(1, 2))


class SeparableConvolution(nn.Module):
    """y_t = b + (Σ_j w_j ⊙ x_(t+j)) W: first along the text, each channel by itself, then across channels."""

    def __init__(self, place: Place, width: int, channels: int, out: int):
        super().__init__()
        self.place, self.width = place, width
        self.depthwise = parameter((channels, width), Normal(width**-0.5))
        self.pointwise = linear(channels, out, truncated)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        strip = lay_out(x, call, self.place, self.width)
        return self.pointwise(strip.new.back(convolve(strip.reached, self.depthwise)))


class Gate(nn.Module):
    """(x W + b) ⊙ σ(x U + c)"""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.both = linear(spec.sizes.d_model, 2 * spec.sizes.d_model, truncated)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        return F.glu(self.both(x))


class EncoderBranches(nn.Module):
    """[sep₉ Norm(relu(x W + b) + [relu(conv₃ x), 0]), 0]: D → 4D → D/2, filled up with zeros."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.width = width = spec.sizes.d_model
        self.left = linear(width, 4 * width, truncated)
        self.right = Convolution(place.named("conv_3"), 3, width, width // 2)
        self.norm = norm(spec, place, 4 * width)
        self.joint = SeparableConvolution(place.named("conv_9"), 9, 4 * width, width // 2)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        hidden = F.relu(self.left(x)) + widened(F.relu(self.right(x, call)), 4 * self.width)
        return widened(self.joint(self.norm(hidden), call), self.width)


class DecoderBranches(nn.Module):
    """sep₇ Norm(relu(sep₁₁ x) + [sep₇ x, 0]): D → 2D → D"""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.width = width = spec.sizes.d_model
        self.left = SeparableConvolution(place.named("conv_11"), 11, width, 2 * width)
        self.right = SeparableConvolution(place.named("conv_7"), 7, width, width // 2)
        self.norm = norm(spec, place, 2 * width)
        self.joint = SeparableConvolution(place.named("conv_7_joint"), 7, 2 * width, width)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        hidden = F.relu(self.left(x, call)) + widened(self.right(x, call), 2 * self.width)
        return self.joint(self.norm(hidden), call)


class DoubleAttention(nn.Module):
    """Self-attention with 2H heads, plus cross-attention, both of the same x.

    The 2H heads are two attentions of H heads each, added up (their W_O side by side), so that a position
    made for the stack's H heads fits them.
    """

    def __init__(self, spec: Spec, place: Place, each: Spec):
        super().__init__()
        self.one = spec.attention(each, place.named("first_attention"))
        self.other = spec.attention(each, place.named("first_attention_too"))
        self.cross = spec.cross(spec, place.named("first_cross"))

    def forward(self, x: Tensor, call: Call) -> Tensor:
        return self.one(x, call) + self.other(x, call) + self.cross(x, call)


def half_as_wide(spec: Spec) -> Spec:
    """The spec with heads of half the width: 2H of them are as wide as the usual H."""
    sizes = spec.sizes
    if sizes.d_head % 2:
        raise ValueError(f"evolved: 2·heads share the width of heads, so d_head must be even, got {sizes.d_head}")
    halved = replace(sizes, d_head=sizes.d_head // 2)
    return Spec(sizes=halved, position=spec.position, norm=spec.norm)  # not by `replace`, which reads every slot


class EvolvedCell(nn.Module):
    """x ← x + step(Norm(x)) for each step in turn."""

    def __init__(self, spec: Spec, place: Place, **steps: nn.Module):
        super().__init__()
        self.steps = tuple(steps)
        for name, step in steps.items():
            self.add_module(name, step)
            self.add_module(f"around_{name}", spec.residual(spec, place.named(name)))

    def forward(self, x: Tensor, call: Call) -> Tensor:
        for name in self.steps:
            x = getattr(self, f"around_{name}")(x, getattr(self, name), call)
        return x


def encoder_cell(spec: Spec, place: Place) -> nn.Module:
    return EvolvedCell(
        spec,
        place,
        gate=Gate(spec, place.named("gate")),
        branches=EncoderBranches(spec, place.named("branches")),
        attention=spec.attention(spec, place.named("attention")),
        feed_forward=spec.feed_forward(spec, place.named("feed_forward")),
    )


def decoder_cell(spec: Spec, place: Place, each: Callable[[Spec], Spec] = half_as_wide) -> nn.Module:
    """`each` makes the spec of either half of the double attention."""
    with_swish = Spec(sizes=spec.sizes, norm=spec.norm, activation=F.silu)
    return EvolvedCell(
        spec,
        place,
        first=DoubleAttention(spec, place.named("first"), each(spec)),
        branches=DecoderBranches(spec, place.named("branches")),
        attention=spec.attention(spec, place.named("attention")),
        cross=spec.cross(spec, place.named("cross")),
        feed_forward=spec.feed_forward(with_swish, place.named("feed_forward")),
    )


def added(sizes: Sizes) -> int:
    d, half, inner = sizes.d_model, sizes.d_model // 2, sizes.heads * sizes.d_head
    encoder = 2 * d * d + 2 * d  # gate
    encoder += d * 4 * d + 4 * d + 3 * d * half + half  # both branches
    encoder += 8 * d + 9 * 4 * d + 4 * d * half + half  # norm, joint convolution
    encoder += 2 * 2 * d  # two norms more
    decoder = 4 * d * inner + 4 * d * inner  # double attention
    decoder += 11 * d + d * 2 * d + 2 * d + 7 * d + d * half + half  # both branches
    decoder += 4 * d + 7 * 2 * d + 2 * d * d + d  # norm, joint convolution
    decoder += 2 * 2 * d  # two norms more
    return sizes.encoder_layers * encoder + sizes.decoder_layers * decoder


@modification("1901.11117", adds=added)
def evolved(spec: Spec) -> Spec:
    """Cells found by evolutionary search: convolutions and a gate beside attention; one cell replaces two layers.

        encoder cell                                        decoder cell
        1  GLU                                              1  self-attention, 2·heads  +  cross-attention
        2  relu(D → 4D)  +  relu(conv 3, D → D/2)           2  relu(sep 11, D → 2D)  +  sep 7, D → D/2
           norm, sep 9, 4D → D/2                               norm, sep 7, 2D → D
        3  self-attention                                   3  self-attention
        4  feed-forward                                     4  cross-attention
                                                            5  feed-forward with swish

    Each step has the norm and residual connection of the spec. The narrower summand of two widths, and the
    output of the encoder's step 2, are padded with zeros. "sep" convolves each channel by itself, then maps
    across channels; a window has its token in the middle in the encoder, at the end in the decoder.
    `encoder_layers` and `decoder_layers` count cells: use half the number of layers. A chosen activation applies
    to the encoder only. The 2·heads together are as wide as the usual heads.
    Parameters: 9.5·d² + 55·d more in an encoder cell than in a layer; in a decoder cell 4.5·d² + 43.5·d
    + 8·d·heads·d_head.
    """
    return replace(spec, encoder_layer=encoder_cell, decoder_layer=decoder_cell)
