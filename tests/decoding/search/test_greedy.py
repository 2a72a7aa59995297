"""Greedy search on a chain that can be computed on paper, and who is in the batch when."""

import math

import pytest

from sixfold import BOS, PAD
from sixfold.decoding.engine import Job
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.search.length_penalty import LengthPenalty
from tests.support.chains import Chain, find

A, B, C = 3, 4, 5

# What follows what in a small language: p(next | word), rows and columns PAD BOS EOS A B C.
CHAIN = [
    [1, 0, 0, 0, 0, 0],  # PAD is never read
    [0.40, 0.30, 0.00, 0.16, 0.08, 0.06],  # after BOS the chain would rather say PAD or BOS, which none may
    [1, 0, 0, 0, 0, 0],
    [0, 0, 0.20, 0.10, 0.60, 0.10],  # A: then B
    [0, 0, 0.30, 0.10, 0.10, 0.50],  # B: then C
    [0, 0, 0.70, 0.10, 0.10, 0.10],  # C: then the end
]


def greedy(*jobs, step=None, **rest):
    return [only for (only,) in find(step or Chain(CHAIN), Greedy(), *jobs, **rest)]


def after(word, limit=10, **rest):
    return Job(source=(word,), prompt=(BOS, word), limit=limit, **rest)


def logs(*probabilities):
    return pytest.approx([math.log(p) for p in probabilities])


def test_the_likeliest_path_on_paper():
    (found,) = greedy(10)
    assert found.tokens == (A, B, C)
    assert found.ended
    assert found.log_probs == logs(0.16, 0.60, 0.50, 0.70)
    assert found.score == pytest.approx(math.log(0.16 * 0.60 * 0.50 * 0.70))


def test_a_text_that_is_cut_off_has_the_probability_of_ending_there():
    step = Chain(CHAIN)
    (found,) = greedy(2, step=step)
    assert (found.tokens, found.ended) == ((A, B), False)
    assert found.log_probs == logs(0.16, 0.60, 0.30)
    assert len(step.asked) == 3
    (found,) = greedy(3)
    assert found.ended  # it has as many tokens as it may, and ends by itself


def test_no_tokens_allowed():
    found = greedy(after(C, 0), after(B, 0))
    assert [(each.tokens, each.ended) for each in found] == [((), True), ((), False)]
    assert [each.log_probs for each in found] == [logs(0.70), logs(0.30)]
    with pytest.raises(ValueError, match="got -1"):
        Job(limit=-1)


def test_words_that_are_never_to_be_said():
    (found,) = greedy(10, never=(PAD, BOS, A))
    assert found.tokens == (B, C)
    assert found.log_probs == logs(0.08, 0.50, 0.70)


def test_prompts_are_read_and_not_part_of_what_is_written():
    found = greedy(after(C), after(BOS), after(B), Job(source=(9,), prompt=(BOS, C, C, A), limit=10))
    assert [each.tokens for each in found] == [(), (A, B, C), (C,), (B, C)]


def test_the_score_is_under_the_length_formula():
    ((found,),) = find(Chain(CHAIN), Greedy(LengthPenalty("average")), 10)
    assert found.score == pytest.approx(math.log(0.16 * 0.60 * 0.50 * 0.70) / 4)
    ((found,),) = find(Chain(CHAIN), Greedy(LengthPenalty(0.6)), 10)
    assert found.score == pytest.approx(math.log(0.16 * 0.60 * 0.50 * 0.70) / 1.5**0.6)


def test_who_is_done_leaves_and_who_waits_takes_the_place():
    step = Chain(CHAIN)
    jobs = [Job(source=(name,), prompt=(word,), limit=10) for name, word in enumerate([C, BOS, B, A, C, B])]
    found = greedy(*jobs, step=step, batch_tokens=2 * 4)  # a token of source and of prompt each: four at a time
    assert [each.tokens for each in found] == [(), (A, B, C), (C,), (B, C), (), (C,)]
    names = [sorted(name for (name,) in asked) for asked in step.asked]
    # 0 is done, a quarter is free, and 4 joins; 2 and 4 are done and 5 joins
    assert names == [[0, 1, 2, 3], [1, 2, 3, 4], [1, 3, 5], [1, 5]]


def test_a_job_larger_than_the_room_goes_alone():
    step = Chain(CHAIN)
    found = greedy(after(B), after(C), step=step, batch_tokens=1)
    assert [each.tokens for each in found] == [(C,), ()]
    assert all(len(asked) == 1 for asked in step.asked)
