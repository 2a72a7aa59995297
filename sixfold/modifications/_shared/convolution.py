"""Convolution over text: windows that respect padding, causality and the cache.

Letters: B rows, L new tokens, w taps of a window, N = L + w − 1 tokens that L windows reach, C channels,
H kernels, K = C/H channels that share one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.core.call import Call
from sixfold.core.dropout import Dropout
from sixfold.core.init import linear
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.core.real_tokens import RealTokens, pick
from sixfold.spec.spec import Spec
from sixfold.transformer import merge_heads, split_heads

_BLOCK = 16  # tokens
STUDY_WIDTH = 9  # taps of every kernel in Narang et al. (2021)


def before(width: int, causal: bool) -> int:
    """The number of tokens in a window before the token that it belongs to: w − 1 if causal, otherwise half of w."""
    return width - 1 if causal else width // 2


class Strip(NamedTuple):
    """Tokens in the order of their positions, where windows can slide over them."""

    reached: Tensor  # (B, N, C): the new tokens and their neighbours, zeros where there is none
    new: RealTokens


def lay_out(x: Tensor, call: Call, place: Place, width: int) -> Strip:
    """Put the tokens x (B, L, C) in a row, with the neighbours that their windows reach.

        encoder, w = 3    · a b c d ·        decoder, w = 3    · · a b c d       ·  zeros, or earlier tokens
                          └─┬─┘                                └─┬─┘                from the cache
                          window of a                          window of a

    Padding is left out on either side, so that a row has the same result alone and in a batch.
    """
    length, left = x.shape[1], before(width, call.causal)
    right = width - 1 - left
    new = RealTokens.of(x, call)
    if call.cache is None:
        return Strip(F.pad(new.x, (0, 0, left, right)), new)

    def after(window: Tensor) -> tuple[Tensor, tuple[Tensor]]:
        """The w − 1 tokens before x → these tokens and x, and the last w − 1 real tokens of both."""
        reached = torch.cat([window, new.x], 1)
        last = reached[:, length:] if new.lengths is None else pick(reached, new.lengths[:, None] + _numbers(left, x))
        return reached, (last,)

    return Strip(call.carry(place, x, lambda memory: (x.new_zeros(1, left, x.shape[2]),), after), new)


def convolve(reached: Tensor, kernel_Cw: Tensor) -> Tensor:
    """y_lc = Σ_j kernel_cj · reached_(l+j),c: the same kernels everywhere. (B, N, C) → (B, L, C)"""
    return F.conv1d(reached.transpose(1, 2), kernel_Cw[:, None], groups=len(kernel_Cw)).transpose(1, 2)


def convolve_each(reached: Tensor, kernel_BLwH: Tensor) -> Tensor:
    """y_lhk = Σ_j kernel_ljh · reached_(l+j),hk: kernels of each token's own. (B, N, C) → (B, L, C)

    B·L·w·C numbers are never made. Kernels that channels share become bands in small matrices, here for
    blocks of 4 tokens and w = 3, one product of matrices for each block and kernel:

        ■ ■ ■ · · ·
        · ■ ■ ■ · ·      (block, block + w − 1), times the tokens that the block reaches,
        · · ■ ■ ■ ·      (block + w − 1, K)
        · · · ■ ■ ■
    """
    length, (width, kernels) = reached.shape[1] - kernel_BLwH.shape[2] + 1, kernel_BLwH.shape[2:]
    if reached.shape[2] == kernels or torch.compiler.is_compiling():  # nothing is shared, or a compiler can fuse
        reached, kernel_BLwH1 = reached.unflatten(2, (kernels, -1)), kernel_BLwH[..., None]
        y = reached[:, :length] * kernel_BLwH1[:, :, 0]
        for j in range(1, width):  # one pass for each tap
            y = torch.addcmul(y, reached[:, j : j + length], kernel_BLwH1[:, :, j])
        return y.flatten(2)
    fill, across = -length % _BLOCK, _BLOCK + width - 1  # blocks: n of them, the last one filled up
    blocks_BnHKa = F.pad(reached, (0, 0, 0, fill)).unfold(1, across, _BLOCK).unflatten(2, (kernels, -1))
    taps_BnHbw = F.pad(kernel_BLwH, (0, 0, 0, 0, 0, fill)).unflatten(1, (-1, _BLOCK)).movedim(-1, 2)
    # Rows of w taps and `block` zeros, read as rows that are one number shorter: each moves one to the right.
    line = F.pad(taps_BnHbw, (0, _BLOCK)).flatten(-2)[..., : _BLOCK * across]
    y_BnHbK = line.unflatten(-1, (_BLOCK, across)) @ blocks_BnHKa.transpose(-2, -1)
    return y_BnHbK.transpose(2, 3).flatten(-2).flatten(1, 2)[:, :length]


class GatedConvolution(ModelPart):
    """conv((x W_a) ⊙ σ(x W_b)) W_O. Subclasses define the weights of the taps (`kernel`) and how to `convolve`."""

    map = "kernel"
    position_places = ()  # the order of taps encodes relative positions

    def __init__(self, spec: Spec, place: Place, width: int, kernels: int, bias: bool = False):
        super().__init__()
        channels = spec.sizes.d_model
        self.place, self.heads, self.width = place, kernels, width
        self.input = linear(channels, 2 * channels, bias=bias)  # W_a, W_b side by side
        self.dropout = Dropout(spec.sizes.dropout)
        self.output = linear(channels, channels, bias=bias)  # W_O

    def kernel(self, u: Tensor) -> Tensor:
        """(B, L, C) → (B or 1, L or 1, w, H): for each token the weights of its taps, which sum to one."""
        raise NotImplementedError

    def convolve(self, reached: Tensor, kernel: Tensor) -> Tensor:
        """(B, N, C) → (B, L, C) with the result of `kernel`."""
        raise NotImplementedError

    def forward(self, x: Tensor, call: Call) -> Tensor:
        u = F.glu(self.input(x))
        strip = lay_out(u, call, self.place, self.width)
        y = self.convolve(strip.reached, self.dropout(self.kernel(strip.new.x)))
        (heads,) = split_heads(strip.new.back(y), self.heads, 1)
        if call.watched(self.place):
            call.show(self.place, weights=self.written_out(u, call), heads=heads)
        return self.leave(merge_heads(call.gate(self.place, heads)))

    def leave(self, y: Tensor) -> Tensor:
        """Map the convolution's output (B, L, C) to the part's output."""
        return self.output(y)

    def written_out(self, u: Tensor, call: Call) -> Tensor:
        """The kernels as weights (B, H, L, M) over all tokens, for a tap."""
        tap_BLM = call.key_positions[:, None, :] - call.positions[:, :, None] + before(self.width, call.causal)
        reached = (tap_BLM >= 0) & (tap_BLM < self.width)
        if call.cache is None and call.real is not None:
            reached = reached & call.real[:, None, :]
        kernel_BLHw = self.kernel(u).transpose(-2, -1).expand(*u.shape[:2], -1, -1)
        taps = tap_BLM.clamp(0, self.width - 1)[:, :, None, :].expand(*kernel_BLHw.shape[:3], -1)
        return kernel_BLHw.gather(-1, taps).masked_fill(~reached[:, :, None, :], 0).transpose(1, 2)


class StudyConvolution(GatedConvolution):
    """(conv((x W_a) ⊙ σ(x W_b)) + c) V W_O, as in Narang et al. (2021). Maps have biases, kernels a width of 9."""

    def __init__(self, spec: Spec, place: Place):
        channels = spec.sizes.d_model
        super().__init__(spec, place, STUDY_WIDTH, kernels=channels, bias=True)
        self.dropout = Dropout(0.0)
        self.bias = nn.Parameter(torch.zeros(channels))  # c, which `convolve` adds
        self.pointwise = linear(channels, channels)  # V

    def leave(self, y: Tensor) -> Tensor:
        return self.output(self.pointwise(y))


def width_at(widths: tuple[int, ...], place: Place) -> int:
    """The width of a layer: layer i has the i-th, layers beyond the end of the list the last one."""
    return widths[min(place.layer or 0, len(widths) - 1)]


def check_widths(name: str, sizes: Sizes, widths: tuple[int, ...], shared: int) -> None:
    """Raise a ValueError unless these are options of a gated convolution."""
    if not widths or min(widths) < 1:
        raise ValueError(f"{name}: widths must be at least 1, such as 3/7/15/31, got {'/'.join(map(str, widths))!r}")
    if shared < 0 or sizes.d_model % (shared or sizes.heads):
        raise ValueError(
            f"{name}: d_model {sizes.d_model} does not divide into {shared or sizes.heads} kernels; "
            f"choose another `shared`"
        )


def gated_parameters(sizes: Sizes, widths: tuple[int, ...], kernel: Callable[[int], int]) -> int:
    """Additional parameters relative to attention; kernel(w) is the number in the kernels of one layer."""
    stacks = (sizes.encoder_layers, sizes.decoder_layers)
    used = [widths[min(layer, len(widths) - 1)] for layers in stacks for layer in range(layers)]
    return sum(3 * sizes.d_model**2 + kernel(width) - _of_attention(sizes) for width in used)


def study_parameters(sizes: Sizes, kernel: int) -> int:
    """`gated_parameters` for `StudyConvolution`; `kernel` is the number in the kernels of one layer."""
    d, layers = sizes.d_model, sizes.encoder_layers + sizes.decoder_layers
    return layers * (4 * d * d + 5 * d + kernel - _of_attention(sizes))


def _of_attention(sizes: Sizes) -> int:
    return 4 * sizes.d_model * sizes.heads * sizes.d_head


def _numbers(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)[None]
