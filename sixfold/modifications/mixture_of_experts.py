"""Mixture of experts: each token visits two of many feed-forward networks.

Letters: N tokens, E experts, C = 2 choices, D model width.
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


class MixtureOfExperts(ModelPart):
    """y = g₁ F_e₁(x) + g₂ F_e₂(x), with the two largest of p = softmax(x W_g) as g, made to sum to 1."""

    batch_dependent = True
    not_exported = "the number of tokens of an expert depends on the text, but an exported program has fixed shapes"

    def __init__(self, spec: Spec, place: Place, plan: Plan, second_threshold: float):
        super().__init__()
        self.place = place
        self.router, self.experts = Router(spec.sizes.d_model, plan.experts), Experts(spec, plan.experts, plan.d_expert)
        self.plan, self.second_threshold = plan.at(place), second_threshold

    def forward(self, x: Tensor, call: Call) -> Tensor:
        x_ND, real_N = tokens_of(x, call)
        probs_NE = self.router(x_ND)
        gates_NC, expert_NC = probs_NE.topk(min(2, self.plan.experts))
        gates_NC = gates_NC / gates_NC.sum(-1, keepdim=True)
        if self.training and call.losses is not None:
            call.losses.append(self.plan.balance * balance_loss(probs_NE, expert_NC[:, 0], real_N))
        expert_NC = chosen_NC = keep(expert_NC, real_N, self.plan.experts)
        call.measure(self.place, "load", lambda: load(chosen_NC, self.plan.experts))
        if self.training:
            expert_NC = keep(expert_NC, self.drawn(gates_NC), self.plan.experts)
            expert_NC = within_capacity(expert_NC, self.plan)
        y_NCD = self.experts(x_ND, expert_NC)
        return (gates_NC[..., None].to(y_NCD.dtype) * y_NCD).sum(1).view(x.shape)

    def drawn(self, gates_NC: Tensor) -> Tensor:
        """The first choice always; the second one with probability min(1, g₂ / second_threshold)."""
        first = torch.arange(gates_NC.shape[1], device=gates_NC.device) == 0
        return first | (torch.rand_like(gates_NC) * self.second_threshold < gates_NC)


def added(sizes: Sizes, experts: int = 32, every: int = 4, d_expert: int | None = None, **_: Any) -> int:
    return shared.added(sizes, experts, every, sizes.d_ff // 2 if d_expert is None else d_expert)


@modification("2006.16668", adds=added, most={**shared.MOST, "second_threshold": 1e6})
def mixture_of_experts(
    spec: Spec,
    *,
    experts: int = 32,
    every: int = 4,
    d_expert: int | None = None,
    capacity: float = 2.0,
    decoder_capacity: float | None = None,
    group: int = 1024,
    balance: float = 0.01,
    second_threshold: float = 0.2,
) -> Spec:
    """Some feed-forward networks become many experts, of which each token visits two.

        p = softmax(x W_g)        e₁, e₂ the two largest        g_i = p[e_i] / (p[e₁] + p[e₂])
        y = g₁ F_e₁(x) + g₂ F_e₂(x)        F_e(x) = φ(x W₁[e]) W₂[e]

    In layers every, 2·every, … of each stack. In training the second visit takes place with probability
    min(1, g₂ / second_threshold), and of a group of S <= `group` tokens an expert takes ⌊S · capacity / experts⌋
    visits, 4 at least: first choices before second ones, in the order of the tokens. A visit over capacity
    adds nothing. To keep the load even, balance · E · Σ_e m_e P_e is added to the loss, with m_e the share of
    tokens whose first choice is e and P_e the mean of p_e. `decoder_capacity` is `capacity` unless given; the
    study's decoder had 1.25, by mistake.
    In training this leaks information: whether a visit is within capacity depends on the other texts of the
    batch. As second choices come after all first ones, it also depends on later words, which a decoder must not
    see. Outside of training every visit takes place, there is no balance loss, and outputs depend on neither.
    Parameters: experts · (2·d_model·d_expert + d_model) instead of those of a feed-forward network;
    d_expert is d_ff/2 unless given.
    """
    if not second_threshold >= 0:
        raise ValueError(f"mixture_of_experts: second_threshold must be at least 0, got {second_threshold}")
    plan = Plan(
        name="mixture_of_experts",
        experts=experts,
        every=every,
        d_expert=spec.sizes.d_ff // 2 if d_expert is None else d_expert,
        capacity=capacity,
        decoder_capacity=decoder_capacity,
        group=group,
        balance=balance,
    )
    part = partial(MixtureOfExperts, plan=plan, second_threshold=second_threshold)
    return replace(spec, feed_forward=partial(in_every, part=part, plan=plan))
