"""Rotary positions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from sixfold.core import forms
from sixfold.core.call import Call
from sixfold.core.place import Place
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Position


class Rotary(Position, form=forms.RotaryForm):
    """Turns each pair (x_2i, x_2i+1) of a query or key by the angle t·base^(−2i/K)."""

    def __init__(self, spec: Spec, place: Place, base: float):
        super().__init__(spec, place)
        self.width, self.base = spec.sizes.d_head, base
        if self.width % 2:
            raise ValueError(f"rotary turns pairs of numbers: d_head must be even, got {self.width}")

    def prepare(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        """cos and sin of every angle, (B or 1, 1, L, K/2)."""
        exact = torch.promote_types(x.dtype, torch.float32)
        even = torch.arange(0, self.width, 2, device=x.device, dtype=exact)
        angles = call.positions[:, None, :, None].to(exact) * self.base ** (-even / self.width)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def rotate(self, heads: Tensor, call: Call) -> Tensor:
        fits = call.position[0].shape[-1] == self.width // 2  # an attention may have heads of another width
        cos, sin = call.position if fits else self.prepare(heads, call)
        even, odd = heads[..., 0::2], heads[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


@modification("2104.09864", adds=lambda sizes, base=0.0: 0, most={"base": 1e12})
def rotary(spec: Spec, *, base: float = 10000.0) -> Spec:
    """Queries and keys are rotated by their position, so that scores depend on distance alone.

        (x_2i, x_2i+1) ← (x_2i cos a − x_2i+1 sin a,  x_2i sin a + x_2i+1 cos a),   a = t · base^(−2i/K)

    Neighbouring numbers form the pairs. (Other code pairs the two halves of a head: the same model with
    permuted columns of W_Q and W_K, so weights can't be copied unchanged.) Values and cross-attention are
    not rotated. No absolute positions are added. Parameters: none.
    """
    if not 0 < base < float("inf"):
        raise ValueError(f"rotary: base must be a number above 0, got {base}")
    return replace(spec, position=partial(Rotary, base=base))
