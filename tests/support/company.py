"""Sentences that are searched for alone and in company, by models that were never trained."""

from functools import cache
from random import Random

import pytest
import torch

from sixfold import BOS, EOS
from sixfold.decoding.engine import Job, search
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.search.length_penalty import LengthPenalty
from sixfold.decoding.search.sample import Sample
from sixfold.decoding.step import GatedStep, with_gates
from tests.support.architectures import WRITERS, parts
from tests.support.small import MODIFICATIONS, POSITIONS, moved_model, seeded

WORDS = 12
METHODS = {"greedy": Greedy(), "beam": Beam(3, n_best=2, length=LengthPenalty(0.6)), "sample": Sample(2)}
# A fresh model whose input and output share a table says one word for ever; with other words for its
# scores, the same in all routes, it wanders about and meets EOS.
OTHER = torch.randperm(WORDS, generator=seeded(5))
# All modifications alone, and the kinds of positions.
WISHES = list(dict.fromkeys([*POSITIONS.values(), *((wish,) for wish in MODIFICATIONS)]))
CHANCE = Random(1)
SOURCES = [[CHANCE.randrange(3, WORDS) for _ in range(CHANCE.randrange(1, 8))] for _ in range(48)]
EVERYBODY = range(len(SOURCES))
LIMITS = [CHANCE.randrange(8) for _ in SOURCES]


def writers():
    """All models that write, for `covering`."""
    return parts(WRITERS, WISHES)


@cache
@torch.inference_mode(False)  # whoever asks first: other tests differentiate the same model
def made(kind, modifications, dtype=torch.float64):
    return moved_model(kind, modifications, vocab=WORDS, dtype=dtype)


class Shuffled(GatedStep):
    """A step that says other words."""

    def __init__(self, step):
        self.step, self.device = with_gates(step), step.device

    def check_gates(self, gates):
        self.step.check_gates(gates)

    def begin(self, sources, gates=None):
        return self.step.begin(sources, gates)

    def __call__(self, ids, state, gates=None):
        said = self.step(ids, state, gates)
        return said._replace(scores=said.scores[:, OTHER])


def job_of(number, kind):
    """A decoder alone has the source for its prompt."""
    source, prompt = ([*SOURCES[number], EOS], [BOS]) if kind == "encoder_decoder" else ([], [BOS, *SOURCES[number]])
    return Job(source=source, prompt=prompt, limit=LIMITS[number], seed=number, tag=number)


@torch.inference_mode()
def found(step, method, numbers, kind, batch_tokens=10**6):
    """{number: hypotheses}"""
    jobs = [job_of(number, kind) for number in numbers]
    return {each.tag: texts for each, texts in search(Shuffled(step), jobs, method, batch_tokens=batch_tokens)}


def assert_same(left, right, numbers, within=1e-9):
    for number in numbers:
        for one, other in zip(left[number], right[number], strict=True):
            assert (one.tokens, one.ended) == (other.tokens, other.ended)
            assert one.log_probs == pytest.approx(other.log_probs, abs=within)
            assert one.score == pytest.approx(other.score, abs=within)
