"""Weighted Transformer: each head is a branch with a feed-forward network of its own.

Letters: B rows, L queries, N = B·L tokens, H branches, G networks, K head width, D model width, F a network's width.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.core.call import Call
from sixfold.core.init import Truncated, parameter
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.core.sharded_tensors import like, whole
from sixfold.spec.registry import modification
from sixfold.spec.spec import Group, Part, Spec, set_apart
from sixfold.transformer import Attention, CrossAttention


def onto_simplex(z: Tensor) -> Tensor:
    """relu(z) / Σ relu(z): non-negative numbers with sum 1; equal ones if all of z are ≤ 0."""
    z, even = F.relu(z), torch.full_like(z, 1 / len(z))
    return torch.where(z.sum() > 0, z / z.sum(), even)


def on_simplex(z: Tensor, *, generator: torch.Generator | None) -> None:
    """Uniform numbers from 0 to 1, divided by their sum."""
    z.copy_(onto_simplex(z.uniform_(generator=generator)))


class Branches(ModelPart):
    """Σ_i α_i FFN_i(κ_i head_i W_O⁽ⁱ⁾), FFN_i(x) = φ(x W₁ + b₁) W₂ + b₂"""

    held: Tensor  # (2, H): κ and α after the last step

    def __init__(self, spec: Spec, place: Place, attention: Part):
        super().__init__()
        sizes, heads = spec.sizes, spec.sizes.heads
        self.attention = attention(spec, place)
        self.output, self.attention.output = self.attention.output, nn.Identity()  # the heads, and W_O apart
        networks, width = self.networks(sizes)
        self.inner = parameter((networks, sizes.d_model, width), Truncated(sizes.d_model**-0.5))  # W₁ (G, D, F)
        self.inner_bias = nn.Parameter(torch.zeros(networks * width))
        self.outer = parameter((networks, width, sizes.d_model), Truncated(width**-0.5))  # W₂ (G, F, D)
        self.outer_bias = nn.Parameter(torch.zeros(networks * sizes.d_model))
        self.kappa, self.alpha = (parameter((heads,), on_simplex) for _ in range(2))
        self.register_buffer("held", torch.zeros(2, heads))
        self.activation = spec.activation

    def after_drawing(self) -> None:
        self.held = torch.stack([self.kappa.detach(), self.alpha.detach()])

    @staticmethod
    def networks(sizes: Sizes) -> tuple[int, int]:
        """The number of networks, a divisor of the number of branches, and their width."""
        return sizes.heads, max(sizes.d_ff // sizes.heads, 1)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        heads, networks = len(self.kappa), len(self.inner)
        heads_HNK = self.attention(x, call).flatten(0, 1).unflatten(-1, (heads, -1)).transpose(0, 1)
        output_HKD = self.output.weight.unflatten(1, (heads, -1)).permute(1, 2, 0)
        branches_HND = (self.kappa[:, None, None] * heads_HNK) @ output_HKD
        inner_bias_G1F, outer_bias_GD = self.inner_bias.view(networks, 1, -1), self.outer_bias.view(networks, -1)
        hidden = torch.baddbmm(inner_bias_G1F, branches_HND.reshape(networks, -1, x.shape[-1]), self.inner)
        hidden_GINF = self.activation(hidden).view(networks, heads // networks, x.shape[0] * x.shape[1], -1)
        alpha_GI = self.alpha.view(networks, -1)
        mixed_GNF = (alpha_GI[..., None, None] * hidden_GINF).sum(1)  # α before W₂, which is linear: one product less
        y_ND = mixed_GNF.transpose(0, 1).flatten(1) @ self.outer.flatten(0, 1) + alpha_GI.sum(1) @ outer_bias_GD
        return y_ND.view(x.shape)

    @torch.no_grad()
    def settle(self, frozen: bool) -> None:
        """After a step: restore κ and α if frozen, else project them onto the simplex."""
        for held, z in zip(self.held, (self.kappa, self.alpha), strict=True):
            if not frozen:
                held.copy_(onto_simplex(whole(z)))
            z.copy_(like(z, held))


class WeightedEncoderLayer(nn.Module):
    """One sub-layer: branched self-attention, with its feed-forward networks inside."""

    def __init__(self, spec: Spec, place: Place, branches: type[Branches] = Branches):
        super().__init__()
        self.attention = branches(spec, place.named("attention"), Attention)
        self.around_attention = spec.residual(spec, place.named("attention"))

    def forward(self, x: Tensor, call: Call) -> Tensor:
        return self.around_attention(x, self.attention, call)


class WeightedDecoderLayer(nn.Module):
    """Ordinary self-attention, then branched attention to the encoder."""

    def __init__(self, spec: Spec, place: Place, attention: Part = Attention, branches: type[Branches] = Branches):
        super().__init__()
        here, there = place.named("attention"), place.named("cross")
        self.attention = attention(spec, here)
        self.around_attention = spec.residual(spec, here)
        self.cross = branches(spec, there, CrossAttention)
        self.around_cross = spec.residual(spec, there)

    def forward(self, x: Tensor, call: Call) -> Tensor:
        x = self.around_attention(x, self.attention, call)
        return self.around_cross(x, self.cross, call)


def settle(model: nn.Module, step: int, steps: int, freeze: int) -> None:
    frozen = step >= steps - min(freeze, steps // 5)
    for part in model.modules():
        if isinstance(part, Branches):
            part.settle(frozen)


def check_freeze(name: str, freeze: int) -> None:
    if freeze < 0:
        raise ValueError(f"{name}: freeze must be at least 0 steps, got {freeze}")


def branch_weights_apart(model: nn.Module) -> list[Group]:
    """κ and α learn √layers times as fast."""
    mine = [p for part in model.modules() if isinstance(part, Branches) for p in (part.kappa, part.alpha)]
    layers = model.sizes.encoder_layers  # type: ignore[union-attr]
    return set_apart(model, Group("branch weights", mine, decay=False, rate=math.sqrt(layers)))  # type: ignore[arg-type]


def added(sizes: Sizes, freeze: int = 20_000) -> int:
    d, heads, layers = sizes.d_model, sizes.heads, sizes.encoder_layers + sizes.decoder_layers
    plain, norm, mixing = 2 * d * sizes.d_ff + sizes.d_ff + d, 2 * d, 2 * heads
    width = max(sizes.d_ff // heads, 1)
    return layers * (heads * (2 * d * width + width + d) - plain + mixing - norm)


@modification("1711.02132", adds=added, most={"freeze": 1_000_000_000})
def weighted(spec: Spec, *, freeze: int = 20_000) -> Spec:
    """Each head is a branch with its own feed-forward network; learned weights sum the branches.

        y = Σ_i α_i FFN_i(κ_i head_i W_O⁽ⁱ⁾)        Σ κ_i = Σ α_i = 1,  κ_i, α_i >= 0

        plain      x ─ norm ─ heads ─ W_O ─ + ─ norm ─ FFN ─ +
        weighted             ┌ head_1 W_O⁽¹⁾ κ_1 ─ FFN_1 α_1 ┐
                   x ─ norm ─┤ …                             Σ ─ +
                             └ head_H W_O⁽ᴴ⁾ κ_H ─ FFN_H α_H ┘

    It replaces self-attention and feed-forward of an encoder layer, and cross-attention and feed-forward of a
    decoder layer, whose self-attention is plain. FFN_i has width d_ff / heads, rounded down. After each optimiser
    step κ and α are projected: relu, then division by their sum. For the last `freeze` steps, at most a fifth of
    all, they are frozen. Their learning rate is √layers times that of the rest (the paper also gives them a
    shorter warm-up).
    Parameters: about as many as in the plain model.
    """
    check_freeze("weighted", freeze)
    return replace(
        spec,
        encoder_layer=WeightedEncoderLayer,
        decoder_layer=WeightedDecoderLayer,
        after_step=partial(settle, freeze=freeze),
        groups=branch_weights_apart,
    )
