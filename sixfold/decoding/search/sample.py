"""Sampling: words are drawn by their probability.

Each hypothesis has random numbers of its own, which follow from its sentence's seed: who shares the
batch with it makes no difference. What may be drawn is narrowed in this order:

    temperature T   p ∝ p^(1/T)
    top_k           the k likeliest words
    top_p           the likeliest words that together have this share of what is left    arXiv 1904.09751
    min_p           words at least so likely as this times the likeliest                 arXiv 2407.01082

The draw is a race: each word arrives after a time that is exponentially distributed with its probability as the rate,
and the first to arrive is drawn, which it is with just this probability. So a probability that is a little larger
or smaller, as it is when the same sums are computed in another batch, matters only if two words arrive together; were
words drawn by where a number falls in the sum of their probabilities, each of them would move all those after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sixfold.decoding.job import Candidates, Hypothesis, Job, Sentence
from sixfold.decoding.search.greedy import go_on
from sixfold.decoding.search.length_penalty import PLAIN, LengthPenalty


@dataclass(eq=False)
class _Drawn(Sentence):
    """A sentence with a source of chance for each of its hypotheses."""

    chance: Sequence[np.random.Generator] = ()

    def clocks(self, words: int) -> list[np.ndarray]:
        """For each hypothesis, when each word would arrive if its rate were 1. (In float32 one in 2²³ would be 0.)"""
        return [chance.standard_exponential(words) for chance in self.chance]


@dataclass(frozen=True)
class Sample:
    """A method of search: so many hypotheses, each of which draws its words."""

    width: int = 1
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    length: LengthPenalty = PLAIN

    def begin(self, job: Job) -> Sentence:
        chance = [np.random.Generator(np.random.Philox([job.seed, number])) for number in range(self.width)]
        return _Drawn(job, [Hypothesis(parent=index) for index in range(self.width)], chance=chance)

    def choose(self, sentences: Sequence[Sentence], words: Candidates) -> None:
        clocks = np.stack([s.clocks(words.chosen.shape[-1]) for s in sentences if isinstance(s, _Drawn)])
        picked = self.draw(words.chosen, torch.from_numpy(clocks).to(words.chosen.device))
        go_on(sentences, words, picked, self.length)

    def draw(self, scores: Tensor, clocks: Tensor) -> Tensor:
        """Scores (…, V), and when each word would arrive at the rate 1, (…, V) → the word that is first, (…)."""
        p = (scores.double() / self.temperature).softmax(-1).nan_to_num(0.0)  # a row of −∞ is found out by its rank
        rate = self.narrowed(p)
        return torch.where(rate > 0, clocks / rate, torch.inf).argmin(-1)

    def narrowed(self, p: Tensor) -> Tensor:
        """p (…, V), with 0 for words that may not be drawn."""
        if 0 < self.top_k < p.shape[-1]:
            p = p * (p >= p.topk(self.top_k).values[..., -1:])
        if self.top_p < 1:
            ordered, order = p.sort(dim=-1, descending=True, stable=True)
            before = ordered.cumsum(-1) - ordered
            kept = ordered * (before < self.top_p * ordered.sum(-1, keepdim=True))
            p = torch.zeros_like(p).scatter(-1, order, kept)
        if self.min_p > 0:
            p = p * (p >= self.min_p * p.amax(-1, keepdim=True))
        return p
