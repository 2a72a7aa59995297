"""Sampling: words are drawn by their probability.

Each hypothesis has its own random numbers, which follow from the seed of its sentence and not from the batch. The
distribution is narrowed in this order:

    temperature T   p ∝ p^(1/T)
    top_k           only the k likeliest words
    top_p           only the likeliest words whose probabilities sum to this share of the rest   arXiv 1904.09751
    min_p           only words with at least this fraction of the likeliest word's probability   arXiv 2407.01082

The draw is a race of exponential clocks: word v gets an arrival time from an exponential distribution with rate p(v),
and the first word to arrive is drawn, which happens with probability p(v). The usual draw compares one random number
with the cumulative sum of p, so that a rounding error in one probability, as another batch causes it, moves the bounds
of all words after it. In the race it changes the result only if two words arrive at nearly the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sixfold.decoding.job import Candidates, Hypothesis, Job, Sentence
from sixfold.decoding.search.greedy import extend
from sixfold.decoding.search.length_penalty import PLAIN, LengthPenalty


@dataclass(eq=False)
class _Drawn(Sentence):
    """A sentence with a random number generator for each of its hypotheses."""

    generators: Sequence[np.random.Generator] = ()

    def clocks(self, words: int) -> list[np.ndarray]:
        """For each hypothesis the arrival time of each word at rate 1.

        In float32, one time in 2²³ would be 0, and that word would be drawn however unlikely it is.
        """
        return [generator.standard_exponential(words) for generator in self.generators]


@dataclass(frozen=True)
class Sample:
    """A method of search: `width` hypotheses, each of which draws its words."""

    width: int = 1
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    length: LengthPenalty = PLAIN

    def begin(self, job: Job) -> Sentence:
        generators = [np.random.Generator(np.random.Philox([job.seed, number])) for number in range(self.width)]
        return _Drawn(job, [Hypothesis(parent=index) for index in range(self.width)], generators=generators)

    def choose(self, sentences: Sequence[Sentence], words: Candidates) -> None:
        clocks = np.stack([s.clocks(words.chosen.shape[-1]) for s in sentences if isinstance(s, _Drawn)])
        picked = self.draw(words.chosen, torch.from_numpy(clocks).to(words.chosen.device))
        extend(sentences, words, picked, self.length)

    def draw(self, scores: Tensor, clocks: Tensor) -> Tensor:
        """Scores (…, V) and arrival times at rate 1, (…, V) → the word that arrives first, (…)."""
        p = (scores.double() / self.temperature).softmax(-1).nan_to_num(0.0)  # `extend` rejects a row of −∞ by its rank
        rate = self.narrowed(p)
        return torch.where(rate > 0, clocks / rate, torch.inf).argmin(-1)

    def narrowed(self, p: Tensor) -> Tensor:
        """p (…, V), with 0 for words that can't be drawn."""
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
