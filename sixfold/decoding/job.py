"""What an engine works on: a job, the sentence it becomes, its hypotheses, and the method that chooses their words.

Letters: S sentences, w hypotheses of each, V words, n source length.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor

from sixfold.core.ids import BOS, EOS
from sixfold.decoding.rules.rule import Rule


@dataclass(frozen=True, kw_only=True)
class Job:
    """A text to be written."""

    source: Sequence[int] = ()  # what the encoder reads
    prompt: Sequence[int] = (BOS,)  # what the decoder reads before it writes
    limit: int  # most tokens to write, without EOS
    rules: Sequence[Rule] = ()
    seed: int = 0  # of its own random numbers
    deadline: float = math.inf  # by the clock of `time.monotonic`: if it is not done then, it fails
    size: int = 0  # tokens it counts for in the budget; 0: those of the source and the prompt
    tag: Any = None  # whatever its owner knows it by
    note: str = ""  # what a person should know, such as that the source was truncated

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"a text has at least 0 tokens, got a limit of {self.limit}")
        if not self.prompt:
            raise ValueError("a prompt has at least one token: BOS")
        for rule in self.rules:
            rule.check(self.limit)

    @property
    def tokens(self) -> int:
        return self.size or len(self.source) + len(self.prompt)


class Unanswerable(ValueError):  # noqa: N818  (it says what is the matter, as ValueError does not)
    """A job that there is no output for."""

    def __init__(self, job: Job, why: str):
        super().__init__(why)
        self.job = job


class Impossible(Unanswerable):
    """No word is allowed any more."""

    def __init__(self, job: Job):
        rules = ", ".join(rule.describe() for rule in job.rules) or "the limits"
        wider = "; a wider beam may find one" if any(rule.demands for rule in job.rules) else ""
        super().__init__(job, f"no output of at most {job.limit} tokens was found that keeps to {rules}{wider}")


class TooLate(Unanswerable):
    """It was not done at its deadline."""

    def __init__(self, job: Job):
        super().__init__(job, "the deadline came before the output was complete")


@dataclass(slots=True)
class Hypothesis:
    """An output: one on its way, or one that was found."""

    tokens: tuple[int, ...] = ()  # without BOS and EOS
    log_probs: tuple[float, ...] = ()  # the model's own, of each token; of one that was found, of EOS, too
    score: float = 0.0  # of one that was found: their sum, under the length formula
    ended: bool = True  # EOS was chosen; False: the limit came first, and the score is that of ending there
    rank: float = 0.0  # the sum of what its words were chosen by; −∞: an empty row
    parent: int = 0  # index of the hypothesis that it continues
    coverage: Tensor | None = None  # (n,): how much it has looked at each source token, if a rule wants to know

    @property
    def alive(self) -> bool:
        return self.rank > -math.inf

    def go_on(self, word: int, log_p: float, rank: float) -> None:
        """Say one word more, by itself."""
        self.tokens, self.log_probs = (*self.tokens, word), (*self.log_probs, log_p)
        self.rank += rank

    def say(self, word: int, log_p: float, rank: float, parent: int) -> Hypothesis:
        """Another hypothesis, that goes on from this one."""
        tokens, log_probs = (*self.tokens, word), (*self.log_probs, log_p)
        return Hypothesis(tokens, log_probs, 0.0, True, rank, parent, self.coverage)


def empty(index: int) -> Hypothesis:
    """A row without a hypothesis: the step computes it, and nothing reads the result."""
    return Hypothesis((EOS,), rank=-math.inf, parent=index)


@dataclass(eq=False)
class Ticket:
    """A job that was submitted, and what became of it."""

    job: Job
    found: list[Any] = field(default_factory=list, kw_only=True)  # the best first
    error: ValueError | None = field(default=None, kw_only=True)  # why nothing was found
    done: bool = field(default=False, kw_only=True)  # something was found, or it failed

    def fail(self, error: ValueError) -> None:
        self.error, self.done = error, True


@dataclass(eq=False)
class Sentence(Ticket):
    """A job on its way. A method puts here what it goes on with, and in the end what it found, or that it failed."""

    open: list[Hypothesis]  # w
    steps: int = 0  # it has gone: as many tokens has each hypothesis
    cut: list[bool] = field(default_factory=list)  # w, at the limit: which of them would have gone on
    watched: bool = False  # a rule wants to know where it looked

    def ended(self, index: int) -> bool:
        return not (self.cut and self.cut[index])

    def fail(self, error: ValueError) -> None:
        super().fail(error)
        self.open = [empty(index) for index in range(len(self.open))]


AnyTicket = TypeVar("AnyTicket", bound=Ticket)


class JobEngine(Generic[AnyTicket]):
    """Whatever jobs are submitted to: jobs that wait, and steps by which they are done."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, int, AnyTicket]] = []  # the next comes first
        self._submitted = 0
        self._left = False  # a job was cancelled, or its deadline has passed, since the last step
        self._hurried = False  # some job has a deadline

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.waiting)

    @property
    def hungry(self) -> bool:
        """Whether nobody waits who has no room: whoever has more jobs can submit them."""
        raise NotImplementedError

    def submit(self, job: Job, order: float | None = None) -> AnyTicket:
        """Let a job wait until there is room for it. The least `order` comes first.

        If none is given, the shortest comes first; but nobody is overtaken by more jobs than it has tokens.
        """
        self._submitted, ticket = self._submitted + 1, self._ticket(job)
        self._hurried = self._hurried or job.deadline < math.inf
        insort(self.waiting, (self._submitted + job.tokens if order is None else order, self._submitted, ticket))
        return ticket

    def _ticket(self, job: Job) -> AnyTicket:
        raise NotImplementedError

    def cancel(self, ticket: AnyTicket) -> None:
        """It is gone by the next step. What is done stays done."""
        if not ticket.done:
            ticket.fail(Unanswerable(ticket.job, "it was cancelled"))
            self._left = True

    def _late(self, running: Iterable[AnyTicket] = ()) -> list[AnyTicket]:
        """Fail the jobs, running or waiting, whose deadline has passed. → their tickets"""
        if not self._hurried:
            return []
        now, unfinished = time.monotonic(), [*running, *(each[-1] for each in self.waiting)]
        late = [ticket for ticket in unfinished if not ticket.done and ticket.job.deadline <= now]
        for ticket in late:
            ticket.fail(TooLate(ticket.job))
            self._left = True
        return late

    def _forget(self) -> None:
        """Nobody waits any more who has failed."""
        if self._left:
            self.waiting = [each for each in self.waiting if not each[-1].done]

    def step(self) -> Sequence[AnyTicket]:
        """Do some of the work. → those that became done by it: something was found, or there is an error"""
        raise NotImplementedError


class Candidates(NamedTuple):
    """What may come next after each hypothesis."""

    chosen: Tensor  # (S, w, V): by what a word is chosen, after all rules: log p + shift
    shift: Tensor  # (S, w)
    scores: Tensor  # (S, w, V): the model's own, log p + log_z
    log_z: Tensor  # (S, w)


class Method(Protocol):
    """A way to choose words."""

    @property
    def width(self) -> int:
        """w, the hypotheses of a sentence."""

    def begin(self, job: Job) -> Sentence: ...

    def choose(self, sentences: Sequence[Sentence], words: Candidates) -> None:
        """Let each sentence that is not done go on, be done, or fail."""
