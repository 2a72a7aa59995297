"""Steps that need no model: tables of what follows what, and a model that computes everything anew."""

import torch

from sixfold.core.ids import PAD
from sixfold.decoding.engine import Job, search
from sixfold.decoding.step import Step, padded


class Rows:
    """A state that knows, for each row, which sentence it is and what it has read."""

    light = False

    def __init__(self, rows, width=1):
        self.rows, self.width = rows, width

    def select(self, places):
        assert places.dim() == 2
        chosen = [[self.rows[place] for place in line] for line in places.tolist()]
        assert all(len({name for name, _ in line}) == 1 for line in chosen), "a line has rows of several sentences"
        return Rows([row for line in chosen for row in line], places.shape[1])

    def join(self, other, free):
        rows, width = list(self.rows), self.width
        for number, place in enumerate(free):
            rows[place * width : (place + 1) * width] = other.rows[number * width : (number + 1) * width]
        return Rows(rows + other.rows[len(free) * width :], width)

    def release(self):
        self.rows = None

    def read(self, ids):
        lines = [[token for token in line if token != PAD] for line in ids.tolist()]
        return Rows([(name, (*read, *new)) for (name, read), new in zip(self.rows, lines, strict=True)], self.width)


class Chain:
    """What follows depends on the last word: a table p(next | word). Each row has scores with a log_z of its own."""

    device = torch.device("cpu")

    def __init__(self, table):
        self.table, self.asked = torch.tensor(table, dtype=torch.float64), []

    def begin(self, sources):
        return Rows([(tuple(source), ()) for source in sources])

    def __call__(self, ids, state):
        state = state.read(ids)
        self.asked.append([name for name, _ in state.rows])
        log_z = torch.tensor([1.5 * len(read) - 2 for _, read in state.rows], dtype=torch.float64)
        return Step(
            self.table[[read[-1] if read else 0 for _, read in state.rows]].log() + log_z[:, None], log_z, state
        )


class Places:
    """What comes next depends on how much was said, and not on what: log p (L, V)."""

    device = torch.device("cpu")

    def __init__(self, log_p):
        self.log_p = log_p

    def begin(self, sources):
        return Rows([(tuple(source), ()) for source in sources])

    def __call__(self, ids, state):
        state = state.read(ids)
        at = [min(max(len(read) - 1, 0), len(self.log_p) - 1) for _, read in state.rows]
        return Step(self.log_p[at].clone(), self.log_p.new_zeros(len(at)), state)


class Anew:
    """A model's step that remembers only words, and computes everything again for each of them."""

    device = torch.device("cpu")

    def __init__(self, model):
        self.model = model

    def begin(self, sources):
        return Rows([(tuple(source), ()) for source in sources])

    def __call__(self, ids, state):
        state = state.read(ids)
        log_p = torch.stack([self._next(source, read) for source, read in state.rows])
        return Step(log_p, log_p.new_zeros(len(state.rows)), state)

    def _next(self, source, read):
        if not read:
            return torch.zeros(self.model.sizes.vocabulary("decoder"), dtype=torch.float64)
        memory = (self.model.encode(padded([source], self.device)),) if self.model.kind == "encoder_decoder" else ()
        return self.model.log_probs(self.model.decode(torch.tensor([read]), *memory)[:, -1])[0]


def find(step, method, *jobs, **rest):
    """What is found for each job, in order. A job may be a limit."""
    jobs = [Job(limit=job, source=(number,)) if isinstance(job, int) else job for number, job in enumerate(jobs)]
    found = {id(job): hypotheses for job, hypotheses in search(step, jobs, method, **rest)}
    return [found[id(job)] for job in jobs]
