"""Switch Transformer: each token visits one of many feed-forward networks.

Letters: N tokens, E experts, D model width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sixfold.core.call import Call
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.modifications._shared import experts as shared
from sixfold.modifications._shared.experts import (
    Experts,
    Plan,
    Router,
    balance_loss,
    in_every,
    keep,
    load,
    tokens_of,
    within_capacity,
)
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


class Switch(ModelPart):
    """y = p_e F_e(x), with e the largest of p = softmax(x W_g)."""

    batch_dependent = True
    not_exported = "the number of tokens of an expert depends on the text, but an exported program has fixed shapes"

    def __init__(self, spec: Spec, place: Place, plan: Plan, jitter: float):
        super().__init__()
        self.place = place
        self.router, self.experts = Router(spec.sizes.d_model, plan.experts), Experts(spec, plan.experts, plan.d_expert)
        self.plan, self.jitter = plan.at(place), jitter

    def forward(self, x: Tensor, call: Call) -> Tensor:
        x_ND, real_N = tokens_of(x, call)
        probs_NE = self.router(self.jittered(x_ND) if self.training else x_ND)
        gate_N1, expert_N1 = probs_NE.max(-1, keepdim=True)
        if self.training and call.losses is not None:
            call.losses.append(self.plan.balance * balance_loss(probs_NE, expert_N1[:, 0], real_N))
        expert_N1 = chosen_N1 = keep(expert_N1, real_N, self.plan.experts)
        call.measure(self.place, "load", lambda: load(chosen_N1, self.plan.experts))
        if self.training:
            expert_N1 = within_capacity(expert_N1, self.plan)
        y_ND = self.experts(x_ND, expert_N1)[:, 0]
        return (gate_N1.to(y_ND.dtype) * y_ND).view(x.shape)

    def jittered(self, x_ND: Tensor) -> Tensor:
        """x times uniform noise from 1 − jitter to 1 + jitter, in float32: half precision would round it to 1."""
        exact = torch.promote_types(x_ND.dtype, torch.float32)
        return x_ND * torch.empty_like(x_ND, dtype=exact).uniform_(1 - self.jitter, 1 + self.jitter)


def added(sizes: Sizes, experts: int = 32, every: int = 4, d_expert: int | None = None, **_: Any) -> int:
    return shared.added(sizes, experts, every, sizes.d_ff if d_expert is None else d_expert)


@modification("2101.03961", adds=added, most=shared.MOST)
def switch(
    spec: Spec,
    *,
    experts: int = 32,
    every: int = 4,
    d_expert: int | None = None,
    capacity: float = 1.2,
    decoder_capacity: float | None = None,
    group: int = 1024,
    jitter: float = 0.01,
    balance: float = 0.01,
) -> Spec:
    """Some feed-forward networks become many experts, of which each token visits one.

        p = softmax(x W_g)        e = argmax p        y = p_e F_e(x)        F_e(x) = φ(x W₁[e]) W₂[e]

    In layers every, 2·every, … of each stack. The router learns through the factor p_e. In training the
    router's input is multiplied by noise from 1 − jitter to 1 + jitter, and of a group of S <= `group` tokens an
    expert takes the first ⌊S · capacity / experts⌋, 4 at least; tokens over capacity skip the layer. To keep
    the load even, balance · E · Σ_e m_e P_e is added to the loss, with m_e the share of tokens that choose e,
    over capacity or not, and P_e the mean of p_e. `decoder_capacity` is `capacity` unless given; the decoder of
    Narang et al. (2021) had 1.25, by mistake.
    In training this leaks information: whether a token is within capacity depends on the tokens before it in the
    batch, those of other texts included, and on the number of tokens; but not on which words come later. Outside
    of training there is no noise, no capacity and no balance loss, and no text depends on others.
    Parameters: experts · (2·d_model·d_expert + d_model) instead of those of a feed-forward network;
    d_expert is d_ff unless given.
    """
    if not 0 <= jitter < 1:
        raise ValueError(f"switch: jitter must be at least 0 and less than 1, got {jitter}")
    plan = Plan(
        name="switch",
        experts=experts,
        every=every,
        d_expert=spec.sizes.d_ff if d_expert is None else d_expert,
        capacity=capacity,
        decoder_capacity=decoder_capacity,
        group=group,
        balance=balance,
    )
    part = partial(Switch, plan=plan, jitter=jitter)
    return replace(spec, feed_forward=partial(in_every, part=part, plan=plan))
