"""Several models that write one text together: the probability of a word is the mean of theirs.

    log p(word) = log (1/M · Σ_m p_m(word)),    M models with one vocabulary

To a search this is a step like any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sixfold.decoding.step import State, Step, StepFunction


class EnsembleState:
    """What each member remembers of the same rows."""

    def __init__(self, members: Sequence[State]):
        self.members = tuple(members)

    @property
    def light(self) -> bool:
        return all(member.light for member in self.members)

    def select(self, rows: Tensor) -> EnsembleState:
        return EnsembleState([member.select(rows) for member in self.members])

    def join(self, other: EnsembleState, free: Sequence[int]) -> EnsembleState:
        return EnsembleState([a.join(b, free) for a, b in zip(self.members, other.members, strict=True)])

    def release(self) -> None:
        for member in self.members:
            member.release()


class Ensemble:
    """The step of several steps. Members may stand on different devices; all answers come to that of the first."""

    def __init__(self, steps: Sequence[StepFunction]):
        if not steps:
            raise ValueError("an ensemble needs at least one member")
        self.steps = tuple(steps)
        self.device = self.steps[0].device

    def begin(self, sources: Sequence[Sequence[int]]) -> EnsembleState:
        return EnsembleState([step.begin(sources) for step in self.steps])

    def __call__(self, ids: Tensor, state: Any) -> Step:
        answers = [step(ids.to(step.device), member) for step, member in zip(self.steps, state.members, strict=True)]
        log_p = torch.stack([(a.scores - a.log_z[:, None]).to(self.device) for a in answers])  # (M, B, V)
        mean = log_p.logsumexp(0) - math.log(len(answers))
        seen = [a.attention.to(self.device) for a in answers if a.attention is not None]
        attention = torch.stack(seen).mean(0) if len(seen) == len(answers) else None
        return Step(mean, mean.new_zeros(mean.shape[0]), EnsembleState([a.state for a in answers]), attention)
