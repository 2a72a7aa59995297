"""Greedy search: always the likeliest next word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sixfold.call import EOS
from sixfold.decoding.length import PLAIN, Length
from sixfold.decoding.search import Hypothesis, Impossible, Job, Open, Sentence, Words, empty
from sixfold.decoding.top import top


@dataclass(frozen=True)
class Greedy:
    """A method of search: one hypothesis, which always goes on with the likeliest word."""

    length: Length = PLAIN
    width: int = 1

    def begin(self, job: Job) -> Sentence:
        return Sentence(job, [Open()])

    def choose(self, sentences: Sequence[Sentence], words: Words) -> None:
        go_on(sentences, words, top(words.chosen, 1).indices[..., 0], self.length)


def go_on(sentences: Sequence[Sentence], words: Words, picked_Sw: Tensor, length: Length) -> None:
    """Each hypothesis by itself says the word that was picked for it; a sentence is done when all have said EOS."""
    index = picked_Sw[..., None]
    log_p = words.scores.gather(-1, index)[..., 0] - words.log_z
    rank = log_p if words.chosen is words.scores else words.chosen.gather(-1, index)[..., 0] - words.shift
    lines = zip(sentences, picked_Sw.tolist(), log_p.tolist(), rank.tolist(), strict=True)
    for sentence, picked, log_probs, ranks in lines:
        if not sentence.done:
            each = zip(sentence.open, picked, log_probs, ranks, strict=True)
            sentence.open = [_say(sentence, place, *one, length=length) for place, one in enumerate(each)]
            sentence.done = not any(one.alive for one in sentence.open)
            if sentence.done:
                sentence.found.sort(key=lambda hypothesis: -hypothesis.score)


def _say(sentence: Sentence, place: int, each: Open, word: int, log_p: float, rank: float, length: Length) -> Open:
    """The hypothesis with one word more, or an empty place after EOS."""
    if each.rank == -math.inf:
        return each
    if not rank > -math.inf:
        raise Impossible(sentence.job)
    if word != EOS:
        return each.say(word, log_p, each.rank + rank, place)
    log_probs = (*each.log_probs, log_p)
    score = length.score(sum(log_probs), len(log_probs))
    sentence.found.append(Hypothesis(each.tokens, log_probs, score, sentence.ended(place)))
    return empty(place)
