"""A running batch: jobs are submitted and cancelled between two steps, and a method chooses the words.

    submit ──▶ waiting ──▶ begin, read the prompt ──▶ join ─┐
                                                            ▼
                                 ┌─────────────────────▶  step ──▶ rules ──▶ method chooses ──▶ done, or failed
                                 │                                                 │
                    cancel ──▶ leave    select the hypotheses that continue ◀──────┘

A finished sentence keeps its rows until a new job takes them, so that nothing is copied; with a state that selects
without copying, or with NaN in its states, it leaves at once. Each sentence has w hypotheses in neighbouring rows. The
hypotheses of one sentence have the same number of tokens, those of another may have more. The output of a job does not
depend on the other jobs of the batch, and a job that fails stops no other.

>>> engine = Engine(step, Beam(4))
>>> ticket = engine.submit(Job(source=[17, 4, EOS], limit=20))
>>> while not ticket.done:
...     engine.step()
>>> ticket.error or ticket.found[0].tokens

Letters: S sentences, w hypotheses of each, B = S·w rows, V words, n source length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice, zip_longest

import torch
from torch import Tensor

from sixfold.core.ids import BOS, EOS, PAD
from sixfold.core.tap import Tap
from sixfold.decoding.job import (
    Candidates,
    Hypothesis,
    Impossible,
    Job,
    JobEngine,
    Method,
    Sentence,
    Unanswerable,
)
from sixfold.decoding.step import State, StepFunction, gates_of_rows, padded, with_gates
from sixfold.decoding.trace import Trace, TraceStep
from sixfold.models.model import Gates

REFILL = 0.25  # free share of the batch at which waiting jobs join: encoding several sources at once is faster
LEAVE = 0.25  # share of finished sentences at which they are dropped, if that needs a copy
_AHEAD = 64  # jobs that `search` submits at once


class Engine(JobEngine[Sentence]):
    """The running sentences, the state of the step function for them, and the waiting jobs. It is for one thread.

    A job joins at the next step if the batch has capacity: sentences × w × tokens of the longest ≤ `batch_tokens`; a
    single job always fits. The rows of a cancelled job are dropped before the next step. Words in `never` are not
    chosen. `check` raises a ValueError for a job that the models can't read, before it is queued.
    """

    def __init__(
        self,
        step: StepFunction,
        method: Method,
        *,
        never: Sequence[int] = (PAD, BOS),
        batch_tokens: int = 4096,
        check: Callable[[Job], None] = lambda job: None,
    ):
        super().__init__()
        self.check = check
        self.function, self.method, self.tokens = with_gates(step), method, batch_tokens // method.width
        self.never = torch.tensor(list(never), dtype=torch.long, device=step.device)
        self.sentences: list[Sentence] = []  # S, in the order of their rows
        self.newest: list[list[int]] = []  # S × w: the newest token of each hypothesis
        self.state: State | None = None
        self._running: list[Sentence] = []  # the sentences that are not done
        self._longest = 0  # tokens of the longest running job
        self._gated = False  # whether a job has gates

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self._running)

    @property
    def hungry(self) -> bool:
        return self._fitting() == len(self.waiting)

    def _ticket(self, job: Job) -> Sentence:
        self.check(job)
        if job.gates:
            self.function.check_gates(job.gates)
        sentence = self.method.begin(job)
        sentence.rules = [rule.fresh() for rule in job.rules]
        sentence.watched = any(rule.needs_attention for rule in job.rules)
        sentence.trace = Trace() if job.trace else None
        self._gated = self._gated or bool(job.gates)
        return sentence

    @torch.inference_mode()
    def step(self) -> list[Sentence]:
        """Extend every running sentence by one word. → the sentences that have finished, with outputs or an error"""
        late = self._late(self._running)
        self._forget()
        if self._left:
            self._count()
            self._drop_done()  # before other jobs take these rows
        self._admit(self._take())
        self._drop_done()
        self._left = False
        done = self._advance() if self._running else []
        if not self._running:
            self._drop_done()
        return late + done

    def _count(self) -> None:
        self._running = [sentence for sentence in self._running if not sentence.done]
        self._longest = max((sentence.job.tokens for sentence in self._running), default=0)

    def _fitting(self) -> int:
        """The number of waiting jobs that fit into the batch."""
        longest = self._longest
        for number, (_, _, sentence) in enumerate(self.waiting, len(self._running)):
            longest = max(longest, sentence.job.tokens)
            if (number + 1) * longest > self.tokens and number:
                return number - len(self._running)
        return len(self.waiting)

    def _take(self) -> list[Sentence]:
        """Take the jobs that join now. If they do not all fit, wait until a share of the batch is free."""
        fitting = self._fitting()
        if fitting < len(self.waiting) and len(self._running) * self._longest > (1 - REFILL) * self.tokens:
            return []
        taken = [sentence for _, _, sentence in self.waiting[:fitting]]
        del self.waiting[:fitting]
        return taken

    @property
    def _light(self) -> bool:
        """Whether finished sentences can be dropped without a copy."""
        return self.state is not None and self.state.light

    def _admit(self, sentences: Sequence[Sentence]) -> None:
        """Read the sources and all but the last token of the prompts, then join."""
        if not sentences:
            return
        if self._light:
            self._drop_done()
        jobs, width, device = [sentence.job for sentence in sentences], self.method.width, self.function.device
        gates = self._gates(sentences)
        state = self.function.begin([job.source for job in jobs], gates)
        if max(len(job.prompt) for job in jobs) > 1:
            state = self.function(padded([job.prompt[:-1] for job in jobs], device, "left"), state, gates).state
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
        """One step of the batch. → the sentences that it has finished"""
        ids = torch.tensor(self.newest, device=self.function.device).view(-1, 1)
        gates = self._gates(self.sentences, self.method.width)
        scores, log_z, self.state, attention, seen = self.function(ids, self.state, gates)
        shape = len(self.sentences), self.method.width
        self._cover(attention)
        self._begin_trace_steps(seen)
        words = self._words(scores.view(*shape, -1), log_z.view(shape))
        self.method.choose(self.sentences, words)
        for sentence in self.sentences:
            sentence.steps += 1
        self._move()
        done = [sentence for sentence in self._running if sentence.done]
        if done:
            self._part_with_nan(done, words)
            self._count()
        return done

    def _part_with_nan(self, done: Sequence[Sentence], words: Candidates) -> None:
        """Name NaN as the reason where it left no word, and drop the rows of all finished sentences that have it.

        A job that took such a row would multiply the old states by 0, and 0 · NaN is NaN.
        """
        nan_S = (words.scores[..., EOS] - words.log_z).isnan().any(-1).tolist()
        for sentence in done:
            if nan_S[self.sentences.index(sentence)]:
                self._left = True
                if isinstance(sentence.error, Impossible):
                    sentence.error = Unanswerable(sentence.job, "the model's log-probabilities are NaN")

    def _gates(self, sentences: Sequence[Sentence], width: int = 1) -> Gates | None:
        """The gates of these sentences' rows; None if there are none."""
        if not self._gated:
            return None
        return gates_of_rows([sentence.job.gates for sentence in sentences], width, self.function.device)

    def _begin_trace_steps(self, seen: Tap | None) -> None:
        """Begin the next step of each trace, with the tap's tensors of the sentence's rows."""
        for number, sentence in enumerate(self.sentences):
            if sentence.trace is not None and not sentence.done:
                own = None if seen is None else seen.part(number, len(self.sentences))
                sentence.trace.steps.append(TraceStep([], own))

    def _cover(self, attention: Tensor | None) -> None:
        """Add the attention of each hypothesis to its coverage, where a rule needs it; without attention, fail."""
        for number, sentence in enumerate(self.sentences):
            if not sentence.watched or sentence.done:
                continue
            if attention is None:
                why = "a rule of this job needs attention weights, which the search does not read"
                sentence.fail(Unanswerable(sentence.job, why))
            else:
                for each, looked in zip(sentence.open, attention[number * len(sentence.open) :], strict=False):
                    now = looked[: len(sentence.job.source)]
                    each.coverage = now if each.coverage is None else each.coverage + now

    def _words(self, scores: Tensor, log_z: Tensor) -> Candidates:
        """The scores of all words: −∞ for those in `never`, at the limit for all but EOS; then changed by rules."""
        scores.index_fill_(-1, self.never, -torch.inf)
        chosen, shift = scores, log_z
        if any(sentence.rules for sentence in self.sentences):
            chosen, shift = scores.clone(), log_z.clone()
        for number, sentence in enumerate(self.sentences):
            budget = sentence.job.limit - sentence.steps
            if sentence.done or not (sentence.rules or budget == 0):
                continue
            if sentence.rules:
                chosen[number] -= log_z[number, :, None]
                shift[number] = 0
                _apply(sentence, chosen[number], budget)
            if budget == 0:
                sentence.stopped = (chosen[number].argmax(-1) != EOS).tolist()
                end = chosen[number, :, EOS].clone()
                chosen[number] = -torch.inf
                chosen[number, :, EOS] = end
        return Candidates(chosen, shift, scores, log_z)

    def _move(self) -> None:
        """Select the rows that the chosen hypotheses continue."""
        still = list(range(self.method.width))
        if len(still) > 1:  # a single hypothesis always continues its own row
            parents = [self._parents(sentence) for sentence in self.sentences]
            if any(line != still for line in parents):
                self._select(range(len(parents)), parents)
        self.newest = [[each.tokens[-1] for each in sentence.open] for sentence in self.sentences]

    def _parents(self, sentence: Sentence) -> list[int]:
        """For each hypothesis of a sentence, the index of the row that it continues."""
        return list(range(self.method.width)) if sentence.done else [each.parent for each in sentence.open]

    def _drop_done(self) -> None:
        """Drop finished sentences once enough have finished to pay for the copy.

        They are dropped at once if a sentence was cancelled or reached its limit: another step might exceed the model's
        positions.
        """
        done = [sentence for sentence in self.sentences if sentence.done]
        enough = self._left or len(done) >= max(1, 0 if self._light else LEAVE * len(self.sentences))
        if done and (enough or not self._running or any(each.steps >= each.job.limit for each in done)):
            stay = [number for number, sentence in enumerate(self.sentences) if not sentence.done]
            self._select(stay, [list(range(self.method.width))] * len(stay))
            self.sentences = [self.sentences[number] for number in stay]
            self.newest = [self.newest[number] for number in stay]

    def _select(self, stay: Sequence[int], parents: Sequence[Sequence[int]]) -> None:
        """Keep these sentences (`stay`), each with these of its rows (`parents`)."""
        width = self.method.width
        rows = [[number * width + parent for parent in line] for number, line in zip(stay, parents, strict=True)]
        if self.state is not None and not rows:
            self.state.release()
        self.state = self.state.select(torch.tensor(rows, device=self.function.device)) if self.state and rows else None


def _apply(sentence: Sentence, log_p: Tensor, budget: int) -> None:
    """Apply the rules of a sentence to log p (w, V) of its hypotheses, in place."""
    for each, row in zip(sentence.open, log_p, strict=True):
        if each.alive:
            for rule in sentence.rules:
                rule.apply(row, each.tokens, budget)


def search(
    step: StepFunction,
    jobs: Iterable[Job],
    method: Method,
    *,
    never: Sequence[int] = (PAD, BOS),
    batch_tokens: int = 4096,
) -> Iterator[tuple[Job, list[Hypothesis]]]:
    """Each job with its hypotheses, the best first, as soon as it is done; the first that fails raises its error."""
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
