"""An ensemble: the probability of a word is the mean of its probabilities in several models.

    log p(word) = log (1/M · Σ_m p_m(word)),    M models with one vocabulary

A search uses it as any other step function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sixfold.decoding.step import GatedStep, State, Step, StepFunction, with_gates
from sixfold.models.model import Gates


class EnsembleState:
    """The states of all members, for the same rows."""

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


class Ensemble(GatedStep):
    """A step function made of several. Members may be on different devices; results are on the device of the first.

    Gates apply to every member. The result has no tap: a tap belongs to one model.
    """

    def __init__(self, steps: Sequence[StepFunction]):
        if not steps:
            raise ValueError("an ensemble needs at least one member")
        self.steps = tuple(map(with_gates, steps))
        self.device = self.steps[0].device

    def check_gates(self, gates: Gates) -> None:
        for step in self.steps:
            step.check_gates(gates)

    def begin(self, sources: Sequence[Sequence[int]], gates: Gates | None = None) -> EnsembleState:
        return EnsembleState([step.begin(sources, gates) for step in self.steps])

    def __call__(self, ids: Tensor, state: Any, gates: Gates | None = None) -> Step:
        members = zip(self.steps, state.members, strict=True)
        answers = [step(ids.to(step.device), member, gates) for step, member in members]
        log_p = torch.stack([(a.scores - a.log_z[:, None]).to(self.device) for a in answers])  # (M, B, V)
        mean = log_p.logsumexp(0) - math.log(len(answers))
        seen = [a.attention.to(self.device) for a in answers if a.attention is not None]
        attention = torch.stack(seen).mean(0) if len(seen) == len(answers) else None
        return Step(mean, mean.new_zeros(mean.shape[0]), EnsembleState([a.state for a in answers]), attention)
