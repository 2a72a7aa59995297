"""Universal Transformer, as Narang et al. (2021) ran it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from sixfold.core.call import Call
from sixfold.core.dropout import Dropout
from sixfold.core.init import Normal, linear, parameter, truncated
from sixfold.core.place import Place, Sizes
from sixfold.modifications import universal
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Residual

AROUND = 2  # steps without a vector before those with one, and the same number after them


class LearnedClock(nn.Module):
    """h + T[t], a learned vector for each of the repeated steps; the steps around them have none."""

    def __init__(self, spec: Spec, place: Place, steps: int):
        super().__init__()
        self.table = parameter((steps, spec.sizes.d_model), Normal(0.02))

    def forward(self, x: Tensor, step: int, call: Call) -> Tensor:
        inside = 0 <= step - AROUND < len(self.table)
        return x + self.table[step - AROUND] if inside else x


class GatedResidual(Residual):
    """y = F(LN x);  z, r = σ(D₁[LN x; LN y]), σ(D₂[LN x; LN y]);  c = σ(D₃[LN(r ⊙ x); LN y])

    x ← x + Drop((1 − z) ⊙ y + z ⊙ c). All LN are one norm: the D after it could compensate any gain.
    """

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        width = spec.sizes.d_model
        self.norm = spec.norm(spec, place)
        self.gates = linear(2 * width, 2 * width, truncated)  # D₁ and D₂
        self.candidate = linear(2 * width, width, truncated)  # D₃
        self.dropout = Dropout(spec.sizes.dropout)

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        normed_y = self.norm(y)
        z, r = self.gates(torch.cat([self.norm(x), normed_y], -1)).sigmoid().chunk(2, -1)
        c = self.candidate(torch.cat([self.norm(r * x), normed_y], -1)).sigmoid()
        return x + self.dropout((1 - z) * y + z * c)


def added(sizes: Sizes, steps: int = 24) -> int:
    d = sizes.d_model
    return universal.added(sizes) + (2 + 3) * 3 * (2 * d * d + d) + 2 * steps * d


@modification("2102.11972", adds=added, most={"steps": 1_000})
def universal_study(spec: Spec, *, steps: int = 24) -> Spec:
    """`universal` as Narang et al. (2021) ran it: 2 + steps + 2 applications of one layer, gated residuals.

        h_t = Layer(h_{t−1} + T[t])        t = 1 … steps, with a learned vector T[t]; no vector in the 2 + 2 others
        y = F(LN x);  z, r = σ(D₁[LN x; LN y]), σ(D₂[LN x; LN y]);  c = σ(D₃[LN(r ⊙ x); LN y])
        x ← x + Drop((1 − z) ⊙ y + z ⊙ c)

    It does not halt. Parameters: one layer for each stack, and steps · d_model; 3 · (2·d_model² + d_model) more
    for each sub-layer.
    """
    universal.check_steps("universal_study", steps)
    clock = partial(LearnedClock, steps=steps)
    stack = partial(universal.UniversalStack, steps=steps + 2 * AROUND, clock=clock)
    return replace(spec, stack=stack, decoder_stack=stack, residual=GatedResidual)
