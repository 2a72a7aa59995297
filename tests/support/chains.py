"""Steps that need no model: tables of the probability of the next word."""

import torch

from sixfold.decoding.engine import Job, search
from sixfold.decoding.step import Step
from sixfold.decoding.uncached import UncachedState


class Chain:
    """What follows depends on the last word: a table p(next | word). Each row has scores with a log_z of its own."""

    device = torch.device("cpu")

    def __init__(self, table):
        self.table, self.asked = torch.tensor(table, dtype=torch.float64), []

    def begin(self, sources):
        return UncachedState.of(sources)

    def __call__(self, ids, state):
        state = state.read(ids)
        self.asked.append(state.source_of_row)
        log_z = torch.tensor([1.5 * len(row) - 2 for row in state.rows], dtype=torch.float64)
        return Step(self.table[[row[-1] if row else 0 for row in state.rows]].log() + log_z[:, None], log_z, state)


class Places:
    """What comes next depends on how much was said, and not on what: log p (L, V)."""

    device = torch.device("cpu")

    def __init__(self, log_p):
        self.log_p = log_p

    def begin(self, sources):
        return UncachedState.of(sources)

    def __call__(self, ids, state):
        state = state.read(ids)
        at = [min(max(len(row) - 1, 0), len(self.log_p) - 1) for row in state.rows]
        return Step(self.log_p[at].clone(), self.log_p.new_zeros(len(at)), state)


def find(step, method, *jobs, **rest):
    """What is found for each job, in order. A job may be a limit."""
    jobs = [Job(limit=job, source=(number,)) if isinstance(job, int) else job for number, job in enumerate(jobs)]
    found = {id(job): hypotheses for job, hypotheses in search(step, jobs, method, **rest)}
    return [found[id(job)] for job in jobs]
