"""Beam search on chains whose best paths can be computed on paper, or by looking at every path there is."""

import itertools
import math

import pytest
import torch

from sixfold import BOS, EOS
from sixfold.decoding.job import Candidates, Impossible, Job
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.search.length_penalty import LengthPenalty
from tests.support.chains import Chain, find

A, B, C = 3, 4, 5

# p(next | word), rows and columns PAD BOS EOS A B.
#   A .24   B .36   A A .072   A B .162   B A .016 …
CHAIN = [
    [1, 0, 0, 0, 0],
    [0, 0, 0, 0.6, 0.4],
    [1, 0, 0, 0, 0],
    [0, 0, 0.4, 0.3, 0.3],  # A
    [0, 0, 0.9, 0.1, 0.0],  # B: almost certainly the end
]


def beam(method, *jobs, chain=CHAIN, **rest):
    return find(Chain(chain), method, *jobs, **rest)


def said(found):
    return [each.tokens for each in found]


def test_two_beginnings_find_what_one_overlooks():
    ((greedy,),) = beam(Greedy(), 5)
    assert greedy.tokens == (A,)  # A is likelier than B, and then it had better end
    ((best,),) = beam(Beam(2), 5)
    assert best.tokens == (B,)
    assert best.score == pytest.approx(math.log(0.36))
    assert best.log_probs == pytest.approx([math.log(0.4), math.log(0.9)])


def test_n_best_on_paper():
    (found,) = beam(Beam(4, n_best=4), 5)
    assert said(found) == [(B,), (A,), (A, B), (A, A)]
    assert [each.score for each in found] == pytest.approx([math.log(p) for p in (0.36, 0.24, 0.162, 0.072)])


def test_the_average_favours_longer_texts():
    (found,) = beam(Beam(4, n_best=3, length=LengthPenalty("average")), 5)
    assert said(found) == [(B,), (A, B), (A,)]  # A B is before A now
    assert [each.score for each in found] == pytest.approx(
        [math.log(0.36) / 2, math.log(0.162) / 3, math.log(0.24) / 2]
    )


def test_the_formula_of_2017():
    assert LengthPenalty(0.6).divisor(7) == pytest.approx(2**0.6)
    assert LengthPenalty(0.0).divisor(7) == LengthPenalty("none").divisor(7) == 1
    assert LengthPenalty("average").divisor(7) == 7
    (found,) = beam(Beam(4, n_best=2, length=LengthPenalty(0.6)), 5)
    assert found[0].score == pytest.approx(math.log(0.36) / (7 / 6) ** 0.6)


def everything(table, limit, length):
    """Every text there is, with its score, the best first."""
    words = range(3, len(table))
    for size in range(limit + 1):
        for tokens in itertools.product(words, repeat=size):
            steps = list(zip((BOS, *tokens), (*tokens, EOS), strict=True))
            p = math.prod(table[before][after] for before, after in steps)
            if p > 0:
                yield tokens, length.score(math.log(p), len(steps))


def random_table(words, seed):
    table = torch.rand(words, words, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 3
    table[:, :2] = 0
    return (table / table.sum(1, keepdim=True)).tolist()


@pytest.mark.parametrize("penalty", ["none", "average", 0.6, 2.0, -1.0])
@pytest.mark.parametrize("seed", range(4))
def test_as_wide_as_the_whole_tree_it_is_exhaustive(penalty, seed):
    table, length, limit = random_table(6, seed), LengthPenalty(penalty), 3
    truth = sorted(everything(table, limit, length), key=lambda item: -item[1])
    (found,) = beam(Beam(4 * 3**limit, n_best=12, length=length), limit, chain=table)
    assert said(found) == [tokens for tokens, _ in truth[:12]]
    assert [each.score for each in found] == pytest.approx([score for _, score in truth[:12]])


@pytest.mark.parametrize("seed", range(20))
def test_one_hypothesis_without_a_length_penalty_is_greedy(seed):
    table = random_table(8, seed)
    for limit in (0, 1, 4, 30):
        assert beam(Beam(1), limit, chain=table) == beam(Greedy(), limit, chain=table)


@pytest.mark.parametrize("seed", range(10))
def test_stopping_early_loses_nothing(seed):
    """It stops as soon as nothing can win: what is found is what would have been found in the end."""

    class Never(LengthPenalty):
        def best(self, log_p, shortest, longest):
            return math.inf

    table = random_table(7, seed)
    for penalty in ("none", "average", 1.0):
        early, late = Chain(table), Chain(table)
        (found,) = find(early, Beam(3, n_best=2, length=LengthPenalty(penalty)), 12)
        (patient,) = find(late, Beam(3, n_best=2, length=Never(penalty)), 12)
        assert found == patient
        assert len(late.asked) == 13
        assert len(early.asked) <= 13
    stopped = Chain(CHAIN)
    find(stopped, Beam(3), 12)
    assert len(stopped.asked) == 2


def test_the_longest_length_allowed_says_who_may_still_win():
    """p(A A A …) falls by .3 at each step, but the average of a long one is worth waiting for, if it may be so long."""
    step = Chain([[1, 0, 0, 0], [0, 0, 0.1, 0.9], [1, 0, 0, 0], [0, 0, 0.1, 0.9]])
    ((best,),) = find(step, Beam(2, length=LengthPenalty("average")), 3)
    assert best.tokens == (A, A, A)  # (log .9³ + log .1) / 4
    assert len(step.asked) == 4


def test_equal_texts_count_once():
    spelling = {A: "a", B: "b", C: "a"}  # two tokens that read alike
    table = [[1, 0, 0, 0, 0, 0], [0, 0, 0, 0.4, 0.31, 0.29], [1, 0, 0, 0, 0, 0], *[[0, 0, 1, 0, 0, 0]] * 3]
    same = lambda tokens: "".join(spelling[token] for token in tokens)  # noqa: E731
    assert said(beam(Beam(3, n_best=3), 2, chain=table)[0]) == [(A,), (B,), (C,)]
    (found,) = beam(Beam(3, n_best=2, same=same), 2, chain=table)
    assert said(found) == [(A,), (B,)]
    (found,) = beam(Beam(3, n_best=3, same=same), 2, chain=table)
    assert said(found) == [(A,), (B,)]  # there are no more


def test_at_the_limit_all_end():
    (found,) = beam(Beam(2, n_best=2), 1)
    assert said(found) == [(B,), (A,)]
    assert [each.ended for each in found] == [True, True]
    endless = [[1, 0, 0, 0], [0, 0, 0.1, 0.9], [1, 0, 0, 0], [0, 0, 0.1, 0.9]]
    ((only,),) = beam(Beam(2, length=LengthPenalty("average")), 2, chain=endless)
    assert (only.tokens, only.ended) == ((A, A), False)


def test_company_makes_no_difference():
    table, method = random_table(9, 3), Beam(3, n_best=3, length=LengthPenalty(0.6))
    limits = [3, 0, 9, 5, 7, 2, 12, 1, 4]
    alone = [beam(method, limit, chain=table)[0] for limit in limits]
    for tokens in (1, 12, 30, 1000):
        assert beam(method, *limits, chain=table, batch_tokens=tokens) == alone


def test_groups_avoid_each_others_words():
    """After BOS both groups would say A (.6); at a price of log 2 the second would rather say B (.4 > .3)."""
    (found,) = beam(Beam(2, n_best=2, groups=2, diversity=math.log(2)), 5)
    assert said(found) == [(B,), (A,)]
    (found,) = beam(Beam(2, n_best=2, groups=2, diversity=0.0), 5)
    assert said(found)[0] == (A,)  # both do the same
    assert len(found) == 2  # and go on until there are enough
    assert found[0].score == pytest.approx(math.log(0.24))  # what was paid is not in the score


@pytest.mark.parametrize("seed", range(5))
def test_groups_without_a_price_are_beams_of_their_own(seed):
    table = random_table(8, seed)
    (one,) = beam(Beam(2, n_best=1), 6, chain=table)
    (many,) = beam(Beam(6, n_best=1, groups=3), 6, chain=table)
    assert one == many


def test_what_makes_no_sense():
    with pytest.raises(ValueError, match="n_best 3"):
        Beam(2, n_best=3)
    with pytest.raises(ValueError, match="into 3 groups"):
        Beam(4, groups=3)
    assert Job(limit=3).tokens == 1


@pytest.mark.parametrize("method", [Beam(4), Beam(6, groups=2, diversity=0.5), Beam(4, n_best=4)])
def test_what_is_no_number_is_no_word(method):
    """EOS is among the first ids, with which a list of equals begins."""
    sentence, scores = method.begin(Job(limit=3)), torch.full((1, method.size, 200), torch.nan)
    method.choose([sentence], Candidates(scores, scores[..., 0], scores, scores[..., 0]))
    assert isinstance(sentence.error, Impossible)
