"""Noisy top-k gating: a token visits the k experts whose noisy scores are largest; two losses keep the load even.

Letters: N tokens, E experts, k visits of a token, D model width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.modifications._shared.experts import keep

_LEAST_NOISE = 0.01  # keeps P from becoming a step, whose gradient is 0
_SMALL = 1e-10


class Visits(NamedTuple):
    """The experts that each token visits."""

    experts: Tensor  # (N, k): their numbers; E for none, where a token is padding
    gates: Tensor  # (N, k): G of these experts, which sum to 1
    importance: Tensor  # (E,): Σ G over the tokens
    load: Tensor  # (E,): with noise Σ P, else the number of visits


class NoisyGate(nn.Module):
    """H = x W_g + ε softplus(x W_noise), in float32 (or float64), also under autocast. The k largest; G = softmax."""

    def __init__(self, width: int, experts: int, k: int):
        super().__init__()
        self.k = k
        self.score = nn.Parameter(torch.zeros(experts, width))  # W_gᵀ
        self.noise = nn.Parameter(torch.zeros(experts, width))  # W_noiseᵀ

    def forward(self, x_ND: Tensor, real_N: Tensor | None) -> Visits:
        exact = torch.promote_types(x_ND.dtype, torch.float32)
        with torch.autocast("cpu" if x_ND.is_meta else x_ND.device.type, enabled=False):
            x_ND = x_ND.to(exact)
            clean_NE = F.linear(x_ND, self.score.to(exact))
            if not self.training:
                return visits(clean_NE, self.k, real_N)
            std_NE = F.softplus(F.linear(x_ND, self.noise.to(exact))) + _LEAST_NOISE
            noisy_NE = clean_NE + torch.randn_like(clean_NE) * std_NE
            return visits(noisy_NE, self.k, real_N, chances(clean_NE, noisy_NE, std_NE, self.k))


def visits(scores_NE: Tensor, k: int, real_N: Tensor | None, chances_NE: Tensor | None = None) -> Visits:
    """The k largest scores of each token, of equal ones the first."""
    experts = scores_NE.shape[1]
    expert_Nk = scores_NE.argsort(dim=-1, descending=True, stable=True)[:, :k]
    gate_Nk = scores_NE.gather(1, expert_Nk).softmax(-1)
    gate_NE = torch.zeros_like(scores_NE).scatter(1, expert_Nk, gate_Nk)
    load_NE = (gate_NE > 0).to(gate_NE.dtype) if chances_NE is None else chances_NE
    if real_N is not None:
        gate_NE, load_NE = (each.masked_fill(~real_N[:, None], 0) for each in (gate_NE, load_NE))
    return Visits(keep(expert_Nk, real_N, experts), gate_Nk, gate_NE.sum(0), load_NE.sum(0))


def chances(clean_NE: Tensor, noisy_NE: Tensor, std_NE: Tensor, k: int) -> Tensor:
    """P: the probability of each expert to be among the k, if only its own noise is drawn again.

    P_i = Φ((clean_i − the k-th largest noisy score of the others) / std_i)
    """
    experts = clean_NE.shape[1]
    if k == experts:
        return torch.ones_like(clean_NE)
    largest = noisy_NE.topk(k + 1, -1).values
    last_in, first_out = largest[:, k - 1 : k], largest[:, k:]
    others_NE = torch.where(noisy_NE > first_out, first_out, last_in)  # of one of the k, the others' k-th is outside
    return torch.special.ndtr((clean_NE - others_NE) / std_NE)


def squared_variation(values_E: Tensor) -> Tensor:
    """CV²: the variance of the values over the square of their mean."""
    return values_E.var(correction=0) / (values_E.mean().square() + _SMALL)
