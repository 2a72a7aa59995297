"""Optimisers over the parameter groups of a model: each has its weight decay and a factor on the learning rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sixfold.config.schema import Training
from sixfold.core.sharded_tensors import is_cut
from sixfold.models.model import Model
from sixfold.spec.spec import Group
from sixfold.training.muon import Muon

Groups = list[dict[str, Any]]  # torch.optim's param_groups


def make_optimizers(model: Model, training: Training) -> list[Optimizer]:
    """The optimiser that `training` asks for; with muon there are two.

    Each of their groups has a "factor": its learning rate is `factor` times the schedule's.
    """
    groups = model.groups()
    _check(model, groups)
    return _MAKERS[training.optimizer](model, groups, training)


def adamw(model: Model, groups: list[Group], training: Training) -> list[Optimizer]:
    return [_adamw(_param_groups(groups, training), training)]


def adafactor(model: Model, groups: list[Group], training: Training) -> list[Optimizer]:
    """Adafactor keeps second moments as a row and a column instead of a matrix.

    Its learning rate is relative: a step moves a parameter by that share of its root mean square (or of 0.001, if that
    is larger). 1e-2 is usual.
    """
    if any(is_cut(p) for p in model.parameters()):
        raise ValueError(
            "torch's Adafactor does not work on shards; use training.optimizer adamw or training.parallel ddp"
        )
    return [torch.optim.Adafactor(_param_groups(groups, training))]


def sgd(model: Model, groups: list[Group], training: Training) -> list[Optimizer]:
    return [torch.optim.SGD(_param_groups(groups, training), momentum=0.9, nesterov=True)]


def muon(model: Model, groups: list[Group], training: Training) -> list[Optimizer]:
    """Muon for the matrices of linear layers, AdamW for all the rest.

    Muon makes the step of each matrix orthogonal: all its directions move equally far. That suits a matrix that maps
    vectors, but not a table whose rows are looked up one by one (words, positions, product keys' values). Its steps are
    scaled to the root mean square of AdamW's, about 0.2 of the learning rate, so that one learning rate serves both.
    """
    linear = {id(part.weight) for part in model.modules() if isinstance(part, nn.Linear)}
    matrices = {id(p) for group in groups for p in group.parameters if group.decay and id(p) in linear}
    optimizers: list[Optimizer] = []
    if inside := _param_groups(_where(groups, lambda p: id(p) in matrices), training):
        optimizers.append(Muon(inside))
    if outside := _param_groups(_where(groups, lambda p: id(p) not in matrices), training):
        optimizers.append(_adamw(outside, training))
    return optimizers


_MAKERS: dict[str, Callable[[Model, list[Group], Training], list[Optimizer]]] = {
    maker.__name__: maker for maker in (adamw, adafactor, sgd, muon)
}


def _adamw(groups: Groups, training: Training) -> Optimizer:
    try:
        return torch.optim.AdamW(groups, betas=training.betas, fused=True)
    except RuntimeError:  # a device for which torch has no fused AdamW
        return torch.optim.AdamW(groups, betas=training.betas)


def _param_groups(groups: Iterable[Group], training: Training) -> Groups:
    return [
        {
            "params": group.parameters,
            "lr": training.learning_rate * group.rate,
            "factor": group.rate,
            "weight_decay": training.weight_decay if group.decay else 0.0,
        }
        for group in groups
        if group.parameters
    ]


def _where(groups: Iterable[Group], fits: Callable[[nn.Parameter], bool]) -> list[Group]:
    """The groups, reduced to the parameters for which `fits` is true."""
    return [replace(group, parameters=[p for p in group.parameters if fits(p)]) for group in groups]


def _check(model: Model, groups: Iterable[Group]) -> None:
    """Raise a ValueError unless each parameter is in exactly one group: one in none would silently never be trained."""
    names = {id(p): name for name, p in model.named_parameters()}
    listed = Counter(id(p) for group in groups for p in group.parameters)
    for parameter, name in names.items():
        if listed[parameter] != 1:
            raise ValueError(
                f"{name} is in {listed[parameter]} of the model's groups; a modification's `groups` must contain "
                f"each parameter exactly once"
            )
