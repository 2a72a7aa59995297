"""The records of an engine: a job, the sentence made from it, its hypotheses, and the method that chooses their words.

Letters: S sentences, w hypotheses of each, V words, n source length.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor

from sixfold.core.ids import BOS, EOS
from sixfold.decoding.rules.rule import Rule
from sixfold.decoding.trace import Trace

if TYPE_CHECKING:
    from sixfold.models.model import Gates


@dataclass(frozen=True, kw_only=True)
class Job:
    """One output to be decoded."""

    source: Sequence[int] = ()  # ids for the encoder
    prompt: Sequence[int] = (BOS,)  # ids that the decoder reads before it writes
    limit: int  # largest number of tokens to write, without EOS
    rules: Sequence[Rule] = ()
    seed: int = 0  # of its random numbers
    deadline: float = math.inf  # on the clock of `time.monotonic`: a job that is not done by then fails
    size: int = 0  # tokens that it counts for in the budget; 0: the length of source and prompt
    tag: Any = None  # for the caller
    note: str = ""  # for the user, such as that the source was truncated
    gates: Gates | None = None  # "decoder.3.cross" → (1, H): factors on the outputs of heads, for this job only
    trace: bool = False  # record which candidates each step compared: `Ticket.trace`

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ValueError(f"the limit of a job is a number of tokens, 0 or more; got {self.limit}")
        if not self.prompt:
            raise ValueError("a prompt has at least one token, BOS; got none")
        for rule in self.rules:
            rule.check(self.limit)

    @property
    def tokens(self) -> int:
        return self.size or len(self.source) + len(self.prompt)


class Unanswerable(ValueError):  # noqa: N818  (named for the job, not for the error)
    """A job without an output, and the reason."""

    def __init__(self, job: Job, why: str):
        super().__init__(why)
        self.job = job


class Impossible(Unanswerable):
    """The rules and limits allow no word."""

    def __init__(self, job: Job):
        rules = ", ".join(rule.describe() for rule in job.rules) or "the limits"
        wider = "; a wider beam may find one" if any(rule.demands for rule in job.rules) else ""
        super().__init__(job, f"no output of at most {job.limit} tokens was found that keeps to {rules}{wider}")


class TooLate(Unanswerable):
    """The job was not done at its deadline."""

    def __init__(self, job: Job):
        super().__init__(job, "the deadline passed before the output was complete")


@dataclass(slots=True)
class Hypothesis:
    """An output: still open, or found."""

    tokens: tuple[int, ...] = ()  # without BOS and EOS
    log_probs: tuple[float, ...] = ()  # the model's own, of each token; once it is found, of EOS as well
    score: float = 0.0  # once it is found: the sum of log_probs under the length formula
    ended: bool = True  # EOS was chosen; False: it was stopped at the limit, and the score includes EOS there
    # What hypotheses are compared by: the sum of the log-probabilities after rules, and once a beam has found it, under
    # the length formula and with what rules add to a complete output. −∞: an empty row
    rank: float = field(default=0.0, compare=False)
    parent: int = 0  # index of the hypothesis that it continues
    coverage: Tensor | None = None  # (n,): attention to each source token, summed over the steps, if a rule needs it

    @property
    def alive(self) -> bool:
        return self.rank > -math.inf

    def append(self, word: int, log_p: float, rank: float) -> None:
        """Append a word, in place."""
        self.tokens, self.log_probs = (*self.tokens, word), (*self.log_probs, log_p)
        self.rank += rank

    def extended(self, word: int, log_p: float, rank: float, parent: int) -> Hypothesis:
        """A new hypothesis: this one and a word."""
        tokens, log_probs = (*self.tokens, word), (*self.log_probs, log_p)
        return Hypothesis(tokens, log_probs, 0.0, True, rank, parent, self.coverage)


def empty(index: int) -> Hypothesis:
    """A row without a hypothesis: the step computes it, and the result is ignored."""
    return Hypothesis((EOS,), rank=-math.inf, parent=index)


@dataclass(eq=False)
class Ticket:
    """A submitted job and its result."""

    job: Job
    found: list[Any] = field(default_factory=list, kw_only=True)  # the best first
    error: ValueError | None = field(default=None, kw_only=True)  # why the job failed
    done: bool = field(default=False, kw_only=True)  # outputs were found, or the job failed
    trace: Trace | None = field(default=None, kw_only=True)  # if the job asked for one

    def fail(self, error: ValueError) -> None:
        self.found, self.error, self.done = [], error, True


@dataclass(eq=False)
class Sentence(Ticket):
    """A job that is being decoded. The method stores its open hypotheses here, then those found, or the failure."""

    open: list[Hypothesis]  # w
    steps: int = 0  # steps so far, which is the number of tokens of each open hypothesis
    stopped: list[bool] = field(default_factory=list)  # (w,), at the length limit: was another word likelier than EOS?
    rules: Sequence[Rule] = ()  # those of the job, for this search alone
    watched: bool = False  # a rule needs the attention to the source

    def ended(self, index: int) -> bool:
        """Whether the hypothesis at this index ends by its own choice, and not because of the limit."""
        return not (self.stopped and self.stopped[index])

    def fail(self, error: ValueError) -> None:
        super().fail(error)
        self.open = [empty(index) for index in range(len(self.open))]


AnyTicket = TypeVar("AnyTicket", bound=Ticket)


class JobEngine(Generic[AnyTicket]):
    """The interface to submit jobs and to advance them step by step: an engine, or a pool of worker processes."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, int, AnyTicket]] = []  # (order, number, ticket), sorted
        self._submitted = 0
        self._left = False  # a job was cancelled, missed its deadline, or ended with NaN since the last step
        self._hurried = False  # a job has a deadline

    @property
    def busy(self) -> bool:
        """Whether any job is waiting or running."""
        return bool(self.waiting)

    @property
    def hungry(self) -> bool:
        """Whether all waiting jobs fit into the batch, so that more can be submitted."""
        raise NotImplementedError

    def submit(self, job: Job, order: float | None = None) -> AnyTicket:
        """Queue a job until it fits into the batch. The job of the smallest `order` is next.

        Without `order`, the shortest is next, but a job of n tokens is overtaken by at most n others.
        """
        self._submitted, ticket = self._submitted + 1, self._ticket(job)
        self._hurried = self._hurried or job.deadline < math.inf
        insort(self.waiting, (self._submitted + job.tokens if order is None else order, self._submitted, ticket))
        return ticket

    def _ticket(self, job: Job) -> AnyTicket:
        raise NotImplementedError

    def cancel(self, ticket: AnyTicket) -> None:
        """Remove a job before the next step. A job that is done stays as it is."""
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
        """Remove failed jobs from those that wait."""
        if self._left:
            self.waiting = [each for each in self.waiting if not each[-1].done]

    def step(self) -> Sequence[AnyTicket]:
        """Advance the work. → the tickets that have finished since, with outputs or an error"""
        raise NotImplementedError


class Candidates(NamedTuple):
    """The scores of every next word after each hypothesis."""

    chosen: Tensor  # (S, w, V): after rules, by which words are chosen: log p + shift
    shift: Tensor  # (S, w)
    scores: Tensor  # (S, w, V): of the model alone: log p + log_z
    log_z: Tensor  # (S, w)


class Method(Protocol):
    """How a search chooses words. One that supports traces adds its candidates to `sentence.trace`."""

    @property
    def width(self) -> int:
        """w, the number of hypotheses of a sentence."""

    def begin(self, job: Job) -> Sentence: ...

    def choose(self, sentences: Sequence[Sentence], words: Candidates) -> None:
        """Extend the hypotheses of each sentence that is not done; mark it as done or failed where it is."""
