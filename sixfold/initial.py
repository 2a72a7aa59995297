"""How weights start: so that at the first step the loss is near ln V, at any depth and width."""

from __future__ import annotations

from torch import nn


def normal(linear: nn.Linear) -> nn.Linear:
    """N(0, 1/n_in): keeps a unit variance; for the matrices of attention."""
    nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
    return _without_bias(linear)


def truncated(linear: nn.Linear) -> nn.Linear:
    """The same, cut at two standard deviations; for feed-forward layers."""
    std = linear.in_features**-0.5
    nn.init.trunc_normal_(linear.weight, std=std, a=-2 * std, b=2 * std)
    return _without_bias(linear)


def _without_bias(linear: nn.Linear) -> nn.Linear:
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear
