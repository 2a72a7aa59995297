"""Drawing: by the probabilities, from what is left of them, the same for a seed in any company."""

from collections import Counter

import pytest
import torch

from sixfold.decoding.engine import Job
from sixfold.decoding.search.sample import Sample
from tests.support.chains import Chain, find

A, B, C = 3, 4, 5
CHAIN = [
    [1, 0, 0, 0, 0, 0],
    [0, 0, 0.05, 0.5, 0.3, 0.15],
    [1, 0, 0, 0, 0, 0],
    *[[0, 0, 0.4, 0.3, 0.2, 0.1]] * 3,
]
P = torch.tensor([0.05, 0.5, 0.3, 0.15], dtype=torch.float64)


def job(seed, limit=8, **rest):
    return Job(source=(seed,), limit=limit, seed=seed, **rest)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, [0.05, 0.5, 0.3, 0.15]),
        ({"top_k": 2}, [0, 0.5, 0.3, 0]),
        ({"top_k": 9}, [0.05, 0.5, 0.3, 0.15]),
        ({"top_p": 0.5}, [0, 0.5, 0, 0]),
        ({"top_p": 0.51}, [0, 0.5, 0.3, 0]),
        ({"top_p": 0.81}, [0, 0.5, 0.3, 0.15]),
        ({"min_p": 0.3}, [0, 0.5, 0.3, 0.15]),
        ({"min_p": 0.31}, [0, 0.5, 0.3, 0]),
        ({"top_k": 2, "top_p": 0.6}, [0, 0.5, 0, 0]),  # .5 is 62.5 % of what top_k has left
    ],
)
def test_what_may_be_drawn_by_hand(options, left):
    assert Sample(**options).narrowed(P).tolist() == pytest.approx(left)


def test_the_word_that_arrives_first_is_drawn():
    """Times at rate 1, divided by P: 0.1/.05 = 2, 1.1/.5 = 2.2, 0.45/.3 = 1.5, 0.33/.15 = 2.2."""
    clocks = torch.tensor([0.1, 1.1, 0.45, 0.33], dtype=torch.float64)
    assert Sample().draw(P.log(), clocks).item() == 2
    assert Sample(top_k=1).draw(P.log(), clocks).item() == 1
    assert Sample().draw(P.log(), clocks * torch.tensor([0.7, 1, 1, 1])).item() == 0
    assert Sample(temperature=0.5).draw(P.log(), clocks).item() == 1  # 0.1/.0025, 1.1/.25 = 4.4, 0.45/.09 = 5, …


def test_a_word_without_probability_never_arrives():
    scores = torch.tensor([-torch.inf, 0.0, -torch.inf])
    assert Sample().draw(scores, torch.tensor([0.0, 5.0, 0.0])).item() == 1


def test_temperature_by_hand():
    """p ∝ p^(1/T): at T = 1/2 .5 and .3 are as 25 to 9."""
    clocks = torch.empty(40_000, 4).exponential_(generator=torch.Generator().manual_seed(1))
    drawn = Counter(Sample(temperature=0.5, top_k=2).draw(P.log().expand(len(clocks), -1), clocks).tolist())
    assert drawn[1] / len(clocks) == pytest.approx(25 / 34, abs=0.01)  # four standard deviations
    assert drawn[1] + drawn[2] == len(clocks)


def test_a_little_rounding_changes_hardly_any_draw():
    """Of 2,000 draws from 5,000 words a dozen would change, if words were drawn by sums of probabilities."""
    chance = torch.Generator().manual_seed(1)
    scores = torch.randn(2000, 5000, generator=chance)
    clocks = torch.empty_like(scores).exponential_(generator=chance)
    rounded = scores + 1e-4 * torch.randn(scores.shape, generator=chance)
    assert (Sample().draw(scores, clocks) != Sample().draw(rounded, clocks)).sum() <= 1


def test_words_come_as_often_as_they_should():
    found = find(Chain(CHAIN), Sample(), *[job(seed, limit=1) for seed in range(4000)], batch_tokens=10**6)
    first = Counter(each.tokens for (each,) in found)
    for tokens, p in (((), 0.05), ((A,), 0.5), ((B,), 0.3), ((C,), 0.15)):
        assert first[tokens] / 4000 == pytest.approx(p, abs=0.03)  # four standard deviations


def test_a_seed_gives_the_same_text_in_any_company():
    jobs = [job(seed, limit) for seed, limit in enumerate([8, 3, 0, 8, 5, 8, 8, 2])]
    method = Sample(width=3)
    alone = [find(Chain(CHAIN), method, each)[0] for each in jobs]
    assert len({each.tokens for several in alone for each in several}) > 10
    for tokens in (1, 15, 1000):
        assert find(Chain(CHAIN), method, *jobs, batch_tokens=tokens) == alone
    assert find(Chain(CHAIN), method, *jobs[::-1]) == alone[::-1]


def test_the_draws_of_a_sentence_differ_and_the_best_comes_first():
    (found,) = find(Chain(CHAIN), Sample(width=8), job(1))
    assert len(found) == 8
    assert len({each.tokens for each in found}) > 2
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    (others,) = find(Chain(CHAIN), Sample(width=8), job(2))
    assert {each.tokens for each in found} != {each.tokens for each in others}


def test_the_score_is_the_models_own():
    """Neither temperature nor what was left out has a say."""
    plain = torch.tensor(CHAIN, dtype=torch.float64).log()
    for (each,) in find(Chain(CHAIN), Sample(temperature=0.3, top_k=3, top_p=0.9), *map(job, range(20))):
        own = [plain[before, after].item() for before, after in zip((1, *each.tokens), (*each.tokens, 2), strict=True)]
        assert each.log_probs == pytest.approx(own)
        assert each.score == pytest.approx(sum(own))
