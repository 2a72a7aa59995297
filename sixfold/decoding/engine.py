"""Many sentences on their way at once, whatever the method that chooses their words.

    waiting ──▶ begin, read the prompt ──▶ join ─┐
                                                 ▼
                      ┌─────────────────────▶  step ──▶ rules ──▶ method chooses ──▶ done
                      │                                                 │
                      └────── select the hypotheses that go on ◀────────┘

Those that are done wait until others take their row, so that the batch stays full and nothing is
moved; where moving costs nothing, they leave at once. Each sentence has w hypotheses, side by side;
those of one sentence have said the same number of tokens, those of another may have said more. Which
sentences share a batch makes no difference to any.

Letters: S sentences, w hypotheses of each, B = S·w rows, V words, n source length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from sixfold.core.ids import BOS, EOS, PAD
from sixfold.decoding.rules.rule import Rule
from sixfold.decoding.step import State, StepFunction, padded

REFILL = 0.25  # share of the batch that is free, at which others join: sources are read together, and not one by one
LEAVE = 0.25  # share of the sentences that are done, at which they leave, where that costs copying


@dataclass(frozen=True, kw_only=True)
class Job:
    """A text to be written."""

    source: Sequence[int] = ()  # what the encoder reads
    prompt: Sequence[int] = (BOS,)  # what the decoder reads before it writes
    limit: int  # most tokens to write, without EOS
    rules: Sequence[Rule] = ()
    seed: int = 0  # of its own random numbers
    size: int = 0  # tokens it counts for in the budget; 0: those of the source and the prompt
    tag: Any = None  # whatever its owner knows it by

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


class Hypothesis(NamedTuple):
    """What a search found."""

    tokens: tuple[int, ...]  # without BOS and EOS
    log_probs: tuple[float, ...]  # the model's own, of each token and of EOS
    score: float  # their sum, under the length formula
    ended: bool = True  # EOS was chosen; False: the limit came first, and the score is that of ending there


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


@dataclass(slots=True)
class OpenHypothesis:
    """A hypothesis on its way."""

    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()  # the model's own
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

    def say(self, word: int, log_p: float, rank: float, parent: int) -> OpenHypothesis:
        """Another hypothesis, that goes on from this one."""
        return OpenHypothesis((*self.tokens, word), (*self.log_probs, log_p), rank, parent, self.coverage)


def empty(index: int) -> OpenHypothesis:
    """A row without a hypothesis: the step computes it, and nothing reads the result."""
    return OpenHypothesis((EOS,), rank=-math.inf, parent=index)


@dataclass
class Sentence:
    """A job on its way. A method puts here what it goes on with, and in the end what it found, the best first."""

    job: Job
    open: list[OpenHypothesis]  # w
    found: list[Hypothesis] = field(default_factory=list)
    done: bool = False
    steps: int = 0  # it has gone: as many tokens has each hypothesis
    cut: list[bool] = field(default_factory=list)  # w, at the limit: which of them would have gone on
    watched: bool = False  # a rule wants to know where it looked

    def ended(self, index: int) -> bool:
        return not (self.cut and self.cut[index])


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
        """Let each sentence that is not done go on, or be done."""


def search(
    step: StepFunction,
    jobs: Iterable[Job],
    method: Method,
    *,
    never: Sequence[int] = (PAD, BOS),
    batch_tokens: int = 4096,
) -> Iterator[tuple[Job, list[Hypothesis]]]:
    """Each job with what was found for it, the best first, as soon as it is done.

    Jobs are taken as there is room for them: sentences × w × the longest one's tokens ≤ `batch_tokens`,
    or one alone. Words in `never` are not chosen. If nothing is left to choose, `Impossible` is raised.
    """
    batch, waiting = RunningBatch(step, method, never), _Queue(jobs, batch_tokens // method.width)
    while True:
        batch.admit(waiting.take(batch.jobs))
        batch.close_ranks()
        if not batch.sentences:
            return
        for sentence in batch.advance():
            yield sentence.job, sentence.found


class _Queue:
    """Jobs that wait for room."""

    def __init__(self, jobs: Iterable[Job], tokens: int):
        self.jobs, self.tokens = iter(jobs), tokens
        self.first: Job | None = None  # of those that wait: it was looked at, and there was no room

    def take(self, running: Sequence[Job]) -> list[Job]:
        """Those that there is room for beside those that run."""
        longest, taken = max((job.tokens for job in running), default=0), list[Job]()
        if running and len(running) * longest > (1 - REFILL) * self.tokens:
            return []
        while (job := self.first or next(self.jobs, None)) is not None:
            longest = max(longest, job.tokens)
            if (len(running) + len(taken) + 1) * longest > self.tokens and (running or taken):
                self.first = job
                return taken
            self.first = None
            taken.append(job)
        return taken


class RunningBatch:
    """The sentences on their way, and what the step remembers of them."""

    def __init__(self, step: StepFunction, method: Method, never: Sequence[int]):
        self.step, self.method = step, method
        self.never = torch.tensor(list(never), dtype=torch.long, device=step.device)
        self.sentences: list[Sentence] = []
        self.newest: list[list[int]] = []  # S × w: the newest token of each hypothesis
        self.state: State | None = None

    @property
    def jobs(self) -> list[Job]:
        """That are not done."""
        return [sentence.job for sentence in self.sentences if not sentence.done]

    @property
    def _light(self) -> bool:
        """Whether nothing has to be copied when somebody leaves."""
        return self.state is not None and self.state.light

    def admit(self, jobs: Sequence[Job]) -> None:
        """Begin jobs, up to where all but the last token of their prompts is read, and let them join."""
        if not jobs:
            return
        if self._light:
            self.close_ranks()
        state, width = self.step.begin([job.source for job in jobs]), self.method.width
        if max(len(job.prompt) for job in jobs) > 1:
            state = self.step(padded([job.prompt[:-1] for job in jobs], self.step.device, "left"), state).state
        if width > 1:
            state = state.select(torch.arange(len(jobs), device=self.step.device)[:, None].expand(-1, width))
        free = [number for number, sentence in enumerate(self.sentences) if sentence.done][: len(jobs)]
        self.state = state if self.state is None else self.state.join(state, free)
        for job, row in zip_longest(jobs, free):
            sentence, newest = self._begin(job), [job.prompt[-1]] * width
            if row is None:
                self.sentences.append(sentence)
                self.newest.append(newest)
            else:
                self.sentences[row], self.newest[row] = sentence, newest

    def _begin(self, job: Job) -> Sentence:
        sentence = self.method.begin(job)
        sentence.watched = any(rule.needs_attention for rule in job.rules)
        return sentence

    def advance(self) -> list[Sentence]:
        """One step of everybody. → those that became done by it"""
        ids = torch.tensor(self.newest, device=self.step.device).view(-1, 1)
        scores, log_z, self.state, attention = self.step(ids, self.state)
        shape = len(self.sentences), self.method.width
        if attention is not None:
            self._cover(attention)
        running = [sentence for sentence in self.sentences if not sentence.done]
        self.method.choose(self.sentences, self._words(scores.view(*shape, -1), log_z.view(shape)))
        for sentence in self.sentences:
            sentence.steps += 1
        self._move()
        return [sentence for sentence in running if sentence.done]

    def _cover(self, attention: Tensor) -> None:
        """Add up where the hypotheses looked, for rules that want to know."""
        for number, sentence in enumerate(self.sentences):
            if sentence.watched and not sentence.done:
                for each, looked in zip(sentence.open, attention[number * len(sentence.open) :], strict=False):
                    now = looked[: len(sentence.job.source)]
                    each.coverage = now if each.coverage is None else each.coverage + now

    def _words(self, scores: Tensor, log_z: Tensor) -> Candidates:
        """What may be chosen: never what is never said, only EOS at the limit, else what the rules say."""
        scores.index_fill_(-1, self.never, -torch.inf)
        chosen, shift = scores, log_z
        if any(sentence.job.rules for sentence in self.sentences):
            chosen, shift = scores.clone(), log_z.clone()
        for number, sentence in enumerate(self.sentences):
            budget = sentence.job.limit - sentence.steps
            if sentence.done or not (sentence.job.rules or budget == 0):
                continue
            if sentence.job.rules:
                chosen[number] -= log_z[number, :, None]
                shift[number] = 0
                _apply(sentence, chosen[number], budget)
            if budget == 0:
                sentence.cut = (chosen[number].argmax(-1) != EOS).tolist()
                end = chosen[number, :, EOS].clone()
                chosen[number] = -torch.inf
                chosen[number, :, EOS] = end
        return Candidates(chosen, shift, scores, log_z)

    def _move(self) -> None:
        """Bring the rows to where the method wants them."""
        still = list(range(self.method.width))
        if len(still) > 1:  # one has nowhere to go
            parents = [self._parents(sentence) for sentence in self.sentences]
            if any(line != still for line in parents):
                self._select(range(len(parents)), parents)
        self.newest = [[each.tokens[-1] for each in sentence.open] for sentence in self.sentences]

    def _parents(self, sentence: Sentence) -> list[int]:
        """From which of its rows each hypothesis goes on."""
        return list(range(self.method.width)) if sentence.done else [each.parent for each in sentence.open]

    def close_ranks(self) -> None:
        """Who is done leaves when it is worth the copying, or could go no further."""
        done = [sentence for sentence in self.sentences if sentence.done]
        if len(done) >= max(1, 0 if self._light else LEAVE * len(self.sentences)) or any(
            each.steps >= each.job.limit for each in done
        ):
            stay = [number for number, sentence in enumerate(self.sentences) if not sentence.done]
            self._select(stay, [list(range(self.method.width))] * len(stay))
            self.sentences = [self.sentences[number] for number in stay]
            self.newest = [self.newest[number] for number in stay]

    def _select(self, stay: Sequence[int], parents: Sequence[Sequence[int]]) -> None:
        """Go on with these sentences, from these of their rows."""
        width = self.method.width
        rows = [[number * width + parent for parent in line] for number, line in zip(stay, parents, strict=True)]
        if self.state is not None and not rows:
            self.state.release()
        self.state = self.state.select(torch.tensor(rows, device=self.step.device)) if self.state and rows else None


def _apply(sentence: Sentence, log_p: Tensor, budget: int) -> None:
    """Let the rules of a sentence change log p (w, V) of its hypotheses."""
    for each, row in zip(sentence.open, log_p, strict=True):
        if each.alive:
            for rule in sentence.job.rules:
                rule.apply(row, each.tokens, budget)
