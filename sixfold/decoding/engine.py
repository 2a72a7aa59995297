"""A running batch that one can talk to, whatever the method that chooses its words.

    submit ──▶ waiting ──▶ begin, read the prompt ──▶ join ─┐
                                                            ▼
                                 ┌─────────────────────▶  step ──▶ rules ──▶ method chooses ──▶ done, or failed
                                 │                                                 │
                    cancel ──▶ leave    select the hypotheses that go on ◀─────────┘

Jobs come and go between two steps. Those that are done wait until others take their row, so that the batch stays full
and nothing is moved; where moving costs nothing, they leave at once. Each sentence has w hypotheses, side by side;
those of one sentence have said the same number of tokens, those of another may have said more. Which sentences share a
batch makes no difference to any, and a job that can't be answered fails alone.

>>> engine = Engine(step, Beam(4))
>>> ticket = engine.submit(Job(source=[17, 4, EOS], limit=20))
>>> while not ticket.done:
...     engine.step()
>>> ticket.error or ticket.found[0].tokens

Letters: S sentences, w hypotheses of each, B = S·w rows, V words, n source length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice, zip_longest

import torch
from torch import Tensor

from sixfold.core.ids import BOS, EOS, PAD
from sixfold.decoding.job import Candidates, Hypothesis, Job, JobEngine, Method, Sentence
from sixfold.decoding.step import State, StepFunction, padded

REFILL = 0.25  # share of the batch that is free, at which others join: sources are read together, and not one by one
LEAVE = 0.25  # share of the sentences that are done, at which they leave, where that costs copying
_AHEAD = 64  # jobs that `search` submits at once


class Engine(JobEngine[Sentence]):
    """Sentences on their way, what the step remembers of them, and jobs that wait for room. One thread may talk to it.

    A job joins at the next step if there is room: sentences × w × the longest one's tokens ≤ `batch_tokens`, or one
    alone. The rows of one that was cancelled are gone at the next step. Words in `never` are not chosen.
    """

    def __init__(
        self, step: StepFunction, method: Method, *, never: Sequence[int] = (PAD, BOS), batch_tokens: int = 4096
    ):
        super().__init__()
        self.function, self.method, self.tokens = step, method, batch_tokens // method.width
        self.never = torch.tensor(list(never), dtype=torch.long, device=step.device)
        self.sentences: list[Sentence] = []  # one for each row of the batch
        self.newest: list[list[int]] = []  # S × w: the newest token of each hypothesis
        self.state: State | None = None
        self._running: list[Sentence] = []  # the sentences that are not done
        self._longest = 0  # tokens of a running job

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self._running)

    @property
    def hungry(self) -> bool:
        return self._fitting() == len(self.waiting)

    def _ticket(self, job: Job) -> Sentence:
        sentence = self.method.begin(job)
        sentence.watched = any(rule.needs_attention for rule in job.rules)
        return sentence

    @torch.inference_mode()
    def step(self) -> list[Sentence]:
        """Everybody goes one word further. → those that became done by it: something was found, or there is an error"""
        late = self._late(self._running)
        self._forget()
        if self._left:
            self._count()
        self._admit(self._take())
        self._close_ranks()
        self._left = False
        done = self._advance() if self._running else []
        if not self._running:
            self._close_ranks()
        return late + done

    def _count(self) -> None:
        self._running = [sentence for sentence in self._running if not sentence.done]
        self._longest = max((sentence.job.tokens for sentence in self._running), default=0)

    def _fitting(self) -> int:
        """How many of those that wait there is room for."""
        longest = self._longest
        for number, (_, _, sentence) in enumerate(self.waiting, len(self._running)):
            longest = max(longest, sentence.job.tokens)
            if (number + 1) * longest > self.tokens and number:
                return number - len(self._running)
        return len(self.waiting)

    def _take(self) -> list[Sentence]:
        """Those that join now: many together, unless there is room for all."""
        fitting = self._fitting()
        if fitting < len(self.waiting) and len(self._running) * self._longest > (1 - REFILL) * self.tokens:
            return []
        taken = [sentence for _, _, sentence in self.waiting[:fitting]]
        del self.waiting[:fitting]
        return taken

    @property
    def _light(self) -> bool:
        """Whether nothing has to be copied when somebody leaves."""
        return self.state is not None and self.state.light

    def _admit(self, sentences: Sequence[Sentence]) -> None:
        """Begin, up to where all but the last token of the prompts is read, and join."""
        if not sentences:
            return
        if self._light:
            self._close_ranks()
        jobs, width, device = [sentence.job for sentence in sentences], self.method.width, self.function.device
        state = self.function.begin([job.source for job in jobs])
        if max(len(job.prompt) for job in jobs) > 1:
            state = self.function(padded([job.prompt[:-1] for job in jobs], device, "left"), state).state
        if width > 1:
            state = state.select(torch.arange(len(jobs), device=device)[:, None].expand(-1, width))
        free = [number for number, sentence in enumerate(self.sentences) if sentence.done][: len(jobs)]
        self.state = state if self.state is None else self.state.join(state, free)
        for sentence, row in zip_longest(sentences, free):
            newest = [sentence.job.prompt[-1]] * width
            if row is None:
                self.sentences.append(sentence)
                self.newest.append(newest)
            else:
                self.sentences[row], self.newest[row] = sentence, newest
        self._running += sentences
        self._count()

    def _advance(self) -> list[Sentence]:
        """One step of everybody. → those that became done by it"""
        ids = torch.tensor(self.newest, device=self.function.device).view(-1, 1)
        scores, log_z, self.state, attention = self.function(ids, self.state)
        shape = len(self.sentences), self.method.width
        if attention is not None:
            self._cover(attention)
        self.method.choose(self.sentences, self._words(scores.view(*shape, -1), log_z.view(shape)))
        for sentence in self.sentences:
            sentence.steps += 1
        self._move()
        done = [sentence for sentence in self._running if sentence.done]
        if done:
            self._count()
        return done

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

    def _close_ranks(self) -> None:
        """Who is done leaves when it is worth the copying, could go no further, or was cancelled."""
        done = [sentence for sentence in self.sentences if sentence.done]
        enough = self._left or len(done) >= max(1, 0 if self._light else LEAVE * len(self.sentences))
        if done and (enough or not self._running or any(each.steps >= each.job.limit for each in done)):
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
        self.state = self.state.select(torch.tensor(rows, device=self.function.device)) if self.state and rows else None


def _apply(sentence: Sentence, log_p: Tensor, budget: int) -> None:
    """Let the rules of a sentence change log p (w, V) of its hypotheses."""
    for each, row in zip(sentence.open, log_p, strict=True):
        if each.alive:
            for rule in sentence.job.rules:
                rule.apply(row, each.tokens, budget)


def search(
    step: StepFunction,
    jobs: Iterable[Job],
    method: Method,
    *,
    never: Sequence[int] = (PAD, BOS),
    batch_tokens: int = 4096,
) -> Iterator[tuple[Job, list[Hypothesis]]]:
    """Each job with what was found for it, the best first, as soon as it is done; the first that fails ends it."""
    engine, jobs, order = Engine(step, method, never=never, batch_tokens=batch_tokens), iter(jobs), count()
    while True:
        while engine.hungry and (more := list(islice(jobs, _AHEAD))):
            for job in more:
                engine.submit(job, next(order))
        if not engine.busy:
            return
        for ticket in engine.step():
            if ticket.error is not None:
                raise ticket.error
            yield ticket.job, ticket.found
