"""The measurements of `sixfold verify` and of the contract: each finds the difference that it is for."""

import math
from dataclasses import replace

import pytest
import torch

from sixfold.decoding.equalities import Trial, compare
from sixfold.decoding.job import Hypothesis, Job
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.uncached import UncachedState, UncachedStep
from sixfold.verify.contract.searching import gaps_in_company
from tests.support.chains import Chain
from tests.support.company import job_of, made

ONE = Hypothesis((5, 6), (-1.0, -1.0, -1.0), -3.0)
TIE = 1e-4


def gap(one, other):
    return compare([[one]], [[other]], TIE).difference


def test_texts_may_differ_in_a_tie_only():
    assert gap(ONE, ONE) == 0
    tied = replace(ONE, tokens=(5, 7), log_probs=(-1.0, -1.000001, -2.0), score=-4.0)
    assert gap(ONE, tied) == pytest.approx(1e-6)
    shorter = replace(ONE, tokens=(5,), log_probs=(-1.0, -1.5), score=-2.5)
    for other in (shorter, replace(tied, log_probs=(-1.0, -1.1, -2.0))):
        assert gap(ONE, other) == math.inf
    assert compare([[ONE], [ONE]], [[ONE], [tied]], TIE)[1:] == (1, 2)
    assert compare([[ONE]], [[replace(ONE, ended=False)]]).different == 1
    assert gap(ONE, replace(ONE, log_probs=(-1.0, -1.5, -1.0))) == 0.5


def test_nan_is_infinitely_far_from_any_number():
    for index in range(3):
        other = replace(ONE, log_probs=tuple(math.nan if i == index else -1.0 for i in range(3)))
        assert gap(ONE, other) == math.inf
        assert compare([[ONE]] * 3, [[ONE], [other], [ONE]]).difference == math.inf


class InCompany(Chain):
    """A step whose scores depend on the number of rows: ε log-probability for each other row."""

    def __init__(self, table, epsilon):
        super().__init__(table)
        self.epsilon = epsilon

    def __call__(self, ids, state):
        found = super().__call__(ids, state)
        return found._replace(scores=found.scores + self.epsilon * (len(ids) - 1) * torch.arange(5))


def test_a_step_that_depends_on_the_batch_is_found():
    table = [[0.2] * 5, [0, 0, 0.1, 0.4, 0.5], [0.2] * 5, [0, 0, 0.9, 0.05, 0.05], [0, 0, 0.9, 0.05, 0.05]]
    trial = Trial([Job(source=(number,), limit=3) for number in range(8)], Greedy())
    assert [each.difference for each in gaps_in_company(trial, InCompany(table, 0.0))] == [0, 0]
    alone, joined = gaps_in_company(trial, InCompany(table, 0.01))
    assert alone.difference == pytest.approx(7 * 4 * 0.01)  # EOS is word 2, and the first word is 4
    assert joined.difference == pytest.approx((7 - 3) * 4 * 0.01)  # four at a time


@torch.inference_mode()
def test_rows_of_different_length_have_the_scores_that_each_has_alone():
    model = made("decoder_only", ())
    step, prompts = UncachedStep(model), [[1, 5, 6, 7], [1, 8], [1]]
    state = UncachedState([()] * 3, [tuple(row[:-1]) for row in prompts])
    together = step(torch.tensor([row[-1:] for row in prompts]), state).scores
    for row, scores in zip(prompts, together, strict=True):
        alone = model.log_probs(model.decode(torch.tensor([row])))[0, -1]
        assert scores.tolist() == pytest.approx(alone.tolist(), abs=1e-9)


def test_jobs_are_answered_in_order():
    model = made("encoder_decoder", ())
    jobs = [job_of(number, "encoder_decoder") for number in range(6)]
    with torch.inference_mode():
        found = Trial(jobs, Greedy()).decode(UncachedStep(model), 1)
        assert found == [Trial([each], Greedy()).decode(UncachedStep(model))[0] for each in jobs]
