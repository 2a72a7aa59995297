"""Greedy search: always the likeliest next word."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from sixfold.core.ids import EOS
from sixfold.decoding.job import Candidates, Hypothesis, Impossible, Job, Sentence, empty
from sixfold.decoding.search.length_penalty import PLAIN, LengthPenalty
from sixfold.decoding.search.topk import top
from sixfold.decoding.trace import TracedCandidate

_TRACED = 5  # words after each hypothesis that a trace lists


@dataclass(frozen=True)
class Greedy:
    """A method of search: one hypothesis, which always continues with the likeliest word."""

    length: LengthPenalty = PLAIN
    width: int = 1

    def begin(self, job: Job) -> Sentence:
        return Sentence(job, [Hypothesis()])

    def choose(self, sentences: Sequence[Sentence], words: Candidates) -> None:
        extend(sentences, words, top(words.chosen, 1).indices[..., 0], self.length)


def extend(sentences: Sequence[Sentence], words: Candidates, picked_Sw: Tensor, length: LengthPenalty) -> None:
    """Append to each hypothesis the word that was picked for it; a sentence is done when all have ended."""
    word_Sw1 = picked_Sw[..., None]
    log_p = (words.scores.gather(-1, word_Sw1)[..., 0] - words.log_z).tolist()
    ruled = words.chosen is not words.scores
    rank = (words.chosen.gather(-1, word_Sw1)[..., 0] - words.shift).tolist() if ruled else log_p
    lines = zip(sentences, picked_Sw.tolist(), log_p, rank, strict=True)
    for number, (sentence, picked, log_probs, ranks) in enumerate(lines):
        if sentence.done:
            continue
        if sentence.trace is not None:
            sentence.trace.steps[-1].candidates += _traced(sentence, words, number, picked)
        for index, each in enumerate(sentence.open):
            if each.rank == -math.inf:
                continue
            if not ranks[index] > -math.inf:
                sentence.fail(Impossible(sentence.job))
                break
            if picked[index] == EOS:
                _end(sentence, index, log_probs[index], length)
            else:
                each.append(picked[index], log_probs[index], ranks[index])


def _traced(sentence: Sentence, words: Candidates, number: int, picked: Sequence[int]) -> Iterator[TracedCandidate]:
    """For a trace: the word that was picked after each hypothesis, then the likeliest of the others."""
    for index, each in enumerate(sentence.open):
        if not each.alive:
            continue
        chosen = words.chosen[number, index]
        best = top(chosen, min(_TRACED, len(chosen))).indices.tolist()
        for word in dict.fromkeys([picked[index], *best]):
            total = each.rank + float(chosen[word] - words.shift[number, index])
            log_p = float(words.scores[number, index, word] - words.log_z[number, index])
            if not total > -math.inf:
                continue
            if word != picked[index]:
                yield TracedCandidate(index, word, log_p, total, "cut")
            elif word == EOS:
                yield TracedCandidate(index, word, log_p, total, "ended" if sentence.ended(index) else "stopped")
            else:
                yield TracedCandidate(index, word, log_p, total, "kept", index)


def _end(sentence: Sentence, index: int, log_p: float, length: LengthPenalty) -> None:
    """Move a hypothesis from the open ones to those found."""
    log_probs = (*sentence.open[index].log_probs, log_p)
    score = length.score(sum(log_probs), len(log_probs))
    sentence.found.append(Hypothesis(sentence.open[index].tokens, log_probs, score, sentence.ended(index)))
    sentence.open[index] = empty(index)
    if not any(each.alive for each in sentence.open):
        sentence.done = True
        sentence.found.sort(key=lambda hypothesis: -hypothesis.score)
