"""Experts: many feed-forward networks, of which each token visits one or two.

Letters: N tokens, E experts, C choices of a token, R = N·C visits, D model width, F an expert's width.
Experts are numbered from 0; the choice E means no expert, for padding and for visits over capacity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.core.call import Call
from sixfold.core.init import Truncated, parameter
from sixfold.core.place import Place, Sizes
from sixfold.spec.spec import Part, Spec
from sixfold.transformer import FeedForward

LEAST_CAPACITY = 4  # visits of a group that an expert always takes
MOST = {  # the largest value of each option of a Plan
    "experts": 10_000,
    "every": 1_000,
    "d_expert": 1_000_000,
    "capacity": 1e6,
    "decoder_capacity": 1e6,
    "group": 1_000_000_000,
    "balance": 1e6,
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The number of experts, their layers, their size, and their capacity."""

    name: str  # of the modification
    experts: int
    every: int
    d_expert: int
    capacity: float
    group: int
    balance: float
    decoder_capacity: float | None = None  # None: as `capacity`

    def __post_init__(self) -> None:
        for option in ("experts", "every", "d_expert", "group"):
            if getattr(self, option) < 1:
                raise ValueError(f"{self.name}: {option} must be at least 1, got {getattr(self, option)}")
        for option in ("capacity", "decoder_capacity"):
            value = getattr(self, option)
            if value is not None and not value > 0:
                raise ValueError(f"{self.name}: {option} must be more than 0, got {value}")
        if not self.balance >= 0:
            raise ValueError(f"{self.name}: balance must be at least 0, got {self.balance}")

    def at(self, place: Place) -> Plan:
        """The plan with the capacity of this place's stack."""
        other = self.decoder_capacity if place.stack == "decoder" else None
        return self if other is None else replace(self, capacity=other)


def in_every(spec: Spec, place: Place, *, part: Part, plan: Plan) -> nn.Module:
    """The part in layers every, 2·every, … counted from 1; the plain feed-forward network in all others."""
    if place.layers < plan.every:
        raise ValueError(
            f"{plan.name}: one layer of every {plan.every} has experts, but a stack has only {place.layers} layers; "
            f"give every={place.layers} or less"
        )
    chosen = place.layer is not None and (place.layer + 1) % plan.every == 0
    return part(spec, place) if chosen else FeedForward(spec, place)


def added(sizes: Sizes, experts: int, every: int, d_expert: int) -> int:
    """Additional parameters, compared with plain feed-forward networks."""
    plain = 2 * sizes.d_model * sizes.d_ff + sizes.d_ff + sizes.d_model
    places = sizes.encoder_layers // every + sizes.decoder_layers // every
    return places * (experts * (2 * sizes.d_model * d_expert + sizes.d_model) - plain)


def _drawn(shape: tuple[int, ...], fan_in: int, variance: float) -> nn.Parameter:
    """Normal with this variance over fan_in, cut at two standard deviations."""
    return parameter(shape, Truncated((variance / fan_in) ** 0.5))


class Router(nn.Module):
    """p = softmax(x W_g), in float32 (or float64), also under autocast. (N, D) → (N, E)"""

    def __init__(self, width: int, experts: int):
        super().__init__()
        self.weight = _drawn((experts, width), width, 0.1)  # W_gᵀ

    def forward(self, x_ND: Tensor) -> Tensor:
        exact = torch.promote_types(x_ND.dtype, torch.float32)
        with torch.autocast("cpu" if x_ND.is_meta else x_ND.device.type, enabled=False):
            return F.linear(x_ND.to(exact), self.weight.to(exact)).softmax(-1)


class Experts(nn.Module):
    """F_e(x) = φ(x W₁[e]) W₂[e], without biases."""

    def __init__(self, spec: Spec, experts: int, d_expert: int, variance: float = 0.1):
        """Weights start with a variance of `variance`/fan_in."""
        super().__init__()
        width = spec.sizes.d_model
        self.inner = _drawn((experts, width, d_expert), width, variance)  # W₁ (E, D, F)
        self.outer = _drawn((experts, d_expert, width), d_expert, variance)  # W₂ (E, F, D)
        self.activation = spec.activation

    def forward(self, x_ND: Tensor, expert_NC: Tensor) -> Tensor:
        """The output of each expert for each token that visits it, (N, C, D); zeros for no expert.

        Visits are sorted by expert, so that each expert has one product over its own rows:

            visits    2 0 2 1 0    sorted    0 0 │ 1 │ 2 2    and back
        """
        visits_R = expert_NC.flatten()
        order_R = visits_R.argsort(stable=True)
        rows_RD = x_ND.index_select(0, order_R // expert_NC.shape[1])
        *mine, unassigned = rows_RD.split(self._visits_of_each(visits_R))
        weights = zip(mine, self.inner.unbind(), self.outer.unbind(), strict=True)
        done = [self.activation(rows @ w1) @ w2 for rows, w1, w2 in weights]
        done_RD = torch.cat([*done, torch.zeros_like(unassigned, dtype=done[0].dtype)])
        return done_RD.index_select(0, order_R.argsort()).view(*expert_NC.shape, -1)

    def _visits_of_each(self, visits_R: Tensor) -> list[int]:
        """The number of visits of each expert, and of those to none. On `meta`, as if spread evenly."""
        experts, visits = self.inner.shape[0], visits_R.shape[0]
        if visits_R.is_meta:
            return [(visits + e) // experts for e in range(experts)] + [0]
        return torch.bincount(visits_R, minlength=experts + 1).tolist()


def balance_loss(probs_NE: Tensor, first_N: Tensor, real_N: Tensor | None) -> Tensor:
    """E · Σ_e m_e P_e: m_e the share of tokens whose first choice is e, P_e the mean of p_e. 1 if all is even."""
    experts = probs_NE.shape[1]
    chosen_NE = F.one_hot(first_N, experts).to(probs_NE.dtype)
    if real_N is None:
        return experts * (chosen_NE.mean(0) * probs_NE.mean(0)).sum()
    real_N1 = real_N[:, None].to(probs_NE.dtype)
    tokens = real_N1.sum().clamp(min=1)
    return experts * ((chosen_NE * real_N1).sum(0) * (probs_NE * real_N1).sum(0)).sum() / tokens**2


def tokens_of(x: Tensor, call: Call) -> tuple[Tensor, Tensor | None]:
    """All tokens in one row (N, D), and which are not padding (N,); None if all are."""
    return x.flatten(0, 1), None if call.real is None else call.real.flatten()


def load(expert_NC: Tensor, experts: int) -> Tensor:
    """The number of visits of each expert, (E,)."""
    return torch.bincount(expert_NC.flatten(), minlength=experts + 1)[:experts]


def keep(expert_NC: Tensor, kept: Tensor | None, experts: int) -> Tensor:
    """The choices that are kept, the others replaced by "no expert"; `kept` is (N, C), or (N,) for all of a token's."""
    if kept is None:
        return expert_NC
    return expert_NC.masked_fill(~(kept[:, None] if kept.dim() == 1 else kept), experts)


def within_capacity(expert_NC: Tensor, plan: Plan) -> Tensor:
    """For training: visits over capacity are replaced by "no expert".

    The real tokens are divided, in their order, evenly into as few groups of at most `group` as possible. Of
    a group of S tokens each expert takes ⌊S · capacity / E⌋ visits.
    """
    real_N = expert_NC[:, 0] < plan.experts
    tokens = real_N.sum().clamp(min=1)
    groups = (tokens + plan.group - 1) // plan.group
    size = (tokens + groups - 1) // groups
    group_N = (real_N.cumsum(0) - 1).clamp(min=0) // size
    capacity = (size.double() * plan.capacity / plan.experts).floor().clamp(min=LEAST_CAPACITY)
    return keep(expert_NC, first_in_line(expert_NC, group_N, plan.experts, capacity), plan.experts)


def first_in_line(expert_NC: Tensor, group_N: Tensor, experts: int, capacity: Tensor | float) -> Tensor:
    """Whether each visit is among the first `capacity` of its group at its expert, (N, C).

    All first choices come before the second ones; of one choice, earlier tokens before later ones.
    """
    queue_R = (group_N[:, None] * (experts + 1) + expert_NC).T.flatten()  # one queue for each group and expert
    order_R = queue_R.argsort(stable=True)
    sorted_R = queue_R[order_R]
    before_R = torch.arange(len(queue_R), device=queue_R.device) - torch.searchsorted(sorted_R, sorted_R)
    return (before_R[order_R.argsort()] < capacity).view(expert_NC.T.shape).T
