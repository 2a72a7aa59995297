"""Two systems compared: a trial on sums equals scoring the texts it stands for, and p can be counted by hand."""

import itertools

import numpy as np
import pytest

from sixfold.scoring.metrics import METRICS
from sixfold.scoring.names import TEXT_METRICS
from sixfold.scoring.significance import (
    bootstrap_scores,
    compare,
    every_exchange,
    exchanged_scores,
    exchanges,
    p_of_draws,
    resampled,
)

FIRST = ["The cat sat on the mat.", "A dog barks loudly at me.", "It is raining again today.", ""]
SECOND = ["A cat sat on a mat.", "The dog barks at me loudly.", "It rains again today.", "There is something."]
REFERENCES = [
    ("The cat sat on the mat.", "A cat was on the mat.", "The cat sits on that mat there."),
    ("The dog barks at me loudly.", "A dog barks at me."),
    ("It rains again today.", "It is raining today.", "Rain again."),
    ("There is nothing.",),
]
exact_match, word_error_rate = METRICS["exact_match"], METRICS["word_error_rate"]


def table(metric):
    return np.array([metric.statistics(texts, REFERENCES) for texts in (FIRST, SECOND)], float)


def marks(*right):
    """Texts of which those with a 1 are right."""
    return ["yes" if each else "no" for each in right]


def truth(number):
    return [("yes",)] * number


@pytest.mark.parametrize("metric", [METRICS[name] for name in TEXT_METRICS], ids=lambda metric: metric.name)
def test_the_score_of_the_statistics_is_the_score_to_the_last_digit(metric):
    for texts in (FIRST, SECOND):
        assert metric.total(metric.statistics(texts, REFERENCES)) == metric.score(texts, REFERENCES)[metric.name]


@pytest.mark.parametrize("metric", [METRICS[name] for name in TEXT_METRICS], ids=lambda metric: metric.name)
def test_a_draw_is_scored_as_if_its_texts_were_written_out(metric):
    for times in ((2, 0, 1, 1), (0, 0, 0, 4), (1, 1, 1, 1), (0, 3, 1, 0)):
        places = [place for place, number in enumerate(times) for _ in range(number)]
        expected = [
            [metric.score([texts[p] for p in places], [REFERENCES[p] for p in places])[metric.name]]
            for texts in (FIRST, SECOND)
        ]
        found = bootstrap_scores(table(metric), metric, np.array([times], float))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("metric", [METRICS[name] for name in TEXT_METRICS], ids=lambda metric: metric.name)
def test_an_exchange_is_scored_as_if_the_texts_were_exchanged(metric):
    (coins,) = every_exchange(4)
    assert sorted(map(tuple, coins)) == sorted(itertools.product((0, 1), repeat=4))
    pairs = [[(b, a) if coin else (a, b) for a, b, coin in zip(FIRST, SECOND, row, strict=True)] for row in coins]
    expected = [
        [metric.score([pair[side] for pair in row], REFERENCES)[metric.name] for row in pairs] for side in (0, 1)
    ]
    np.testing.assert_allclose(exchanged_scores(table(metric), metric, coins), expected, rtol=0, atol=1e-9)


def test_randomisation_by_hand():
    # Three texts differ, all in favour of the second: as large a difference has 2 of their 8 exchanges.
    found = compare(marks(1, 0, 0, 0), marks(1, 1, 1, 1), truth(4), exact_match)
    assert (found.first.value, found.second.value, found.difference.value) == (25.0, 100.0, 75.0)
    assert (found.p_randomisation, found.exact, found.trials) == (0.25, True, 16)
    assert found.better == "second"
    # 2 : 1 of three is a difference of at least 1, as every exchange has
    assert compare(marks(0, 0, 1), marks(1, 1, 0), truth(3), exact_match).p_randomisation == 1.0


def test_randomisation_by_trials_comes_near_the_exact_number():
    first, second = marks(*[0] * 6, *[1] * 14), marks(*[1] * 20)
    found = compare(first, second, truth(20), exact_match)
    assert (found.exact, found.trials) == (False, 10_000)
    assert found.p_randomisation == pytest.approx(2 / 2**6, abs=0.005)
    # p counts the real arrangement as one of the trials
    trials = compare(marks(*[0] * 20), marks(*[1] * 20), truth(20), exact_match, trials=99)
    assert trials.p_randomisation == 1 / 100


def test_bootstrap_by_hand():
    # All 4⁴ draws of four texts, three of which the second alone has right: one draw shows no difference.
    places = itertools.product(range(4), repeat=4)
    times = np.array([np.bincount(draw, minlength=4) for draw in places], float)
    rows = np.array([exact_match.statistics(t, truth(4)) for t in (marks(1, 0, 0, 0), marks(1, 1, 1, 1))], float)
    first, second = bootstrap_scores(rows, exact_match, times)
    assert len(first) == 256
    assert sorted(set(second - first)) == [0, 25, 50, 75, 100]
    assert p_of_draws(second - first) == p_of_draws(first - second) == 2 * (1 + 1) / (1 + 256)
    assert p_of_draws(np.array([1.0, -1.0, 0.0])) == 1.0


def test_intervals_are_those_of_the_binomial_distribution():
    # 50 of 100 right: a draw has 50 ± 2·5 right, and of the difference of 10 texts each way none is left.
    first, second = marks(*[1, 0] * 50), marks(*[1, 0] * 40, *[0, 1] * 10)
    found = compare(first, second, truth(100), exact_match)
    assert found.first.value == found.second.value == 50.0
    assert (found.first.low, found.first.high) == pytest.approx((40, 60), abs=1.5)
    assert (found.difference.low, found.difference.high) == pytest.approx((-8.8, 8.8), abs=1.5)  # 1.96 · √20
    assert found.p_randomisation == 1.0
    assert found.p_bootstrap > 0.8
    assert found.better == "neither"


def test_every_draw_has_as_many_texts_and_every_coin_is_fair():
    draws = np.concatenate([*resampled(7, 500, np.random.default_rng(0))])
    assert draws.shape == (500, 7)
    assert (draws.sum(1) == 7).all()
    np.testing.assert_allclose(draws.mean(0), 1, atol=0.2)
    coins = np.concatenate([*exchanges(7, 500, np.random.default_rng(0))])
    assert set(coins.ravel()) == {0, 1}
    np.testing.assert_allclose(coins.mean(0), 0.5, atol=0.1)


def test_portions_make_no_difference_to_how_many(monkeypatch):
    monkeypatch.setattr("sixfold.scoring.significance._CELLS", 10)
    for chunks, number in ((resampled(4, 5, np.random.default_rng(0)), 5), (every_exchange(4), 16)):
        parts = [*chunks]
        assert len(parts) > 1
        assert sum(map(len, parts)) == number
    assert len({*map(tuple, np.concatenate([*every_exchange(4)]))}) == 16


@pytest.mark.parametrize("name", TEXT_METRICS)
def test_a_system_is_no_better_than_itself(name):
    found = compare(FIRST, FIRST, REFERENCES, METRICS[name], resamples=50)
    assert found.p_bootstrap == found.p_randomisation == 1.0
    assert (found.difference.value, found.difference.low, found.difference.high) == (0, 0, 0)
    assert found.better == "neither"


def test_a_seed_gives_the_same_and_the_order_only_turns_the_sign():
    options = {"resamples": 100, "trials": 10}
    found = compare(FIRST, SECOND, REFERENCES, METRICS["bleu"], seed=3, **options)
    assert found == compare(FIRST, SECOND, REFERENCES, METRICS["bleu"], seed=3, **options)
    assert found != compare(FIRST, SECOND, REFERENCES, METRICS["bleu"], seed=4, **options)
    turned = compare(SECOND, FIRST, REFERENCES, METRICS["bleu"], seed=3, **options)
    assert turned.p_randomisation == found.p_randomisation
    assert turned.p_bootstrap == found.p_bootstrap
    assert (turned.difference.value, turned.difference.low) == pytest.approx(
        (-found.difference.value, -found.difference.high)
    )


def test_fewer_errors_are_better():
    found = compare(["a b"], ["a x"], [("a b",)], word_error_rate)
    assert (found.difference.value, found.better) == (50.0, "first")
    assert found.json()["better"] == "first"


def test_no_trials_are_refused():
    with pytest.raises(ValueError, match="at least one trial, got 0 resamples"):
        compare(["a"], ["b"], [("a",)], exact_match, resamples=0)
    with pytest.raises(ValueError, match="1 hypotheses, but references for 2"):
        compare(["a", "b"], ["b"], [("a",), ("b",)], exact_match)
