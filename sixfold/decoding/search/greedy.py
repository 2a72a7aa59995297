"""Greedy search: always the likeliest next word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sixfold.core.ids import EOS
from sixfold.decoding.job import Candidates, Hypothesis, Impossible, Job, Sentence, empty
from sixfold.decoding.search.length_penalty import PLAIN, LengthPenalty
from sixfold.decoding.search.topk import top


@dataclass(frozen=True)
class Greedy:
    """A method of search: one hypothesis, which always goes on with the likeliest word."""

    length: LengthPenalty = PLAIN
    width: int = 1

    def begin(self, job: Job) -> Sentence:
        return Sentence(job, [Hypothesis()])

    def choose(self, sentences: Sequence[Sentence], words: Candidates) -> None:
        go_on(sentences, words, top(words.chosen, 1).indices[..., 0], self.length)


def go_on(sentences: Sequence[Sentence], words: Candidates, picked_Sw: Tensor, length: LengthPenalty) -> None:
    """Each hypothesis by itself says the word that was picked for it; a sentence is done when all have said EOS."""
    word_Sw1 = picked_Sw[..., None]
    log_p = (words.scores.gather(-1, word_Sw1)[..., 0] - words.log_z).tolist()
    ruled = words.chosen is not words.scores
    rank = (words.chosen.gather(-1, word_Sw1)[..., 0] - words.shift).tolist() if ruled else log_p
    lines = zip(sentences, picked_Sw.tolist(), log_p, rank, strict=True)
    for sentence, picked, log_probs, ranks in lines:
        if sentence.done:
            continue
        for index, each in enumerate(sentence.open):
            if each.rank == -math.inf:
                continue
            if not ranks[index] > -math.inf:
                sentence.fail(Impossible(sentence.job))
                break
            if picked[index] == EOS:
                _end(sentence, index, log_probs[index], length)
            else:
                each.go_on(picked[index], log_probs[index], ranks[index])


def _end(sentence: Sentence, index: int, log_p: float, length: LengthPenalty) -> None:
    """A hypothesis has ended, and its row is empty."""
    log_probs = (*sentence.open[index].log_probs, log_p)
    score = length.score(sum(log_probs), len(log_probs))
    sentence.found.append(Hypothesis(sentence.open[index].tokens, log_probs, score, sentence.ended(index)))
    sentence.open[index] = empty(index)
    if not any(each.alive for each in sentence.open):
        sentence.done = True
        sentence.found.sort(key=lambda hypothesis: -hypothesis.score)
