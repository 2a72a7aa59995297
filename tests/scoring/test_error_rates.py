"""Error rates, counted by hand."""

import itertools
from functools import cache

import pytest

from sixfold.scoring.error_rates import (
    edit_distance,
    exact_match,
    pronunciation,
    symbol_error_rate,
    without_stress,
    word_error_rate,
)
from sixfold.scoring.metrics import METRICS


@pytest.mark.parametrize(
    ("left", "right", "edits"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("abc", "abc", 0),
        ("kitten", "sitting", 3),  # k→s, e→i, +g
        ("ab", "ba", 2),
        ("aaa", "aa", 1),  # the common ends overlap
        ("abcabc", "abc", 3),
        ("intention", "execution", 5),
    ],
)
def test_edit_distance_by_hand(left, right, edits):
    assert edit_distance(left, right) == edits


def test_edit_distance_is_that_of_the_plain_recursion():
    def plain(left, right):
        @cache
        def d(i, j):
            if not i or not j:
                return i + j
            return min(d(i - 1, j) + 1, d(i, j - 1) + 1, d(i - 1, j - 1) + (left[i - 1] != right[j - 1]))

        return d(len(left), len(right))

    texts = ["".join(letters) for length in range(5) for letters in itertools.product("ab", repeat=length)]
    for left, right in itertools.product(texts, texts):
        assert edit_distance(left, right) == plain(left, right)


def test_words_are_whatever_stands_between_spaces():
    # 1 substitution in 3 words, 1 deletion of 2 words, nothing in 1
    score = word_error_rate(["the cat sat", "good", "yes"], [("the dog sat",), ("good day",), ("yes",)])
    assert score == {"word_error_rate": pytest.approx(100 * 2 / 6)}


def test_symbols_are_characters():
    # "cat" → "cut" 1 of 3;  "a b" → "ab" 1 of 2;  "ü" right, 1
    score = symbol_error_rate(["cat", "a b", "ü"], [("cut",), ("ab",), ("ü",)])
    assert score == {"symbol_error_rate": pytest.approx(100 * 2 / 6)}


def test_the_nearest_reference_counts_and_so_does_its_length():
    # 1 edit from the second, of 4 words; 3 from the first
    assert word_error_rate(["a b c d"], [("x y c z", "a b c e")]) == {"word_error_rate": 25.0}
    assert word_error_rate(["a b c d"], [("a b c d e", "p")]) == {"word_error_rate": 20.0}


def test_more_edits_than_words_are_more_than_100_per_cent():
    assert word_error_rate(["a b c"], [("x",)]) == {"word_error_rate": 300.0}


def test_empty_texts():
    assert word_error_rate([""], [("",)]) == {"word_error_rate": 0.0}
    assert word_error_rate(["", "a"], [("a b",), ("a",)]) == {"word_error_rate": pytest.approx(100 * 2 / 3)}


def test_an_exact_match_is_one_to_the_letter():
    references = [("yes", "Yes"), ("yes ",), ("no",), ("no",)]
    assert exact_match(["Yes", "yes", "no", "NO"], references) == {"exact_match": 50.0}


def test_pronunciation_of_four_words():
    said = ["HH AH0 L OW1", "T AH0 M AA1 T OW2", "R EH1 D", "K AE1 T"]
    listed = [
        ("HH AH0 L OW1", "HH EH0 L OW1"),  # right, with stress too
        ("T AH0 M EY1 T OW2", "T AH0 M AA1 T OW0"),  # right by the second, but for stress
        ("R IY1 D",),  # wrong: 1 edit of 3 phones
        ("B IH1 G K AE1 T S",),  # wrong: 4 edits of 7 phones
    ]
    scores = pronunciation(said, listed)
    assert list(scores) == ["pronunciation", "pronunciation_stressed", "phone_error_rate"]
    assert scores["pronunciation"] == 50.0
    assert scores["pronunciation_stressed"] == 75.0
    assert scores["phone_error_rate"] == pytest.approx(100 * (0 + 0 + 1 + 4) / (4 + 6 + 3 + 7))


def test_stress_is_a_digit_at_the_end():
    assert without_stress("AH0  K IY3 2ND") == ("AH", "K", "IY", "2ND")


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_refuses_what_cannot_be_scored(name):
    score = METRICS[name].score
    with pytest.raises(ValueError, match="nothing to score"):
        score([], [])
    with pytest.raises(ValueError, match="2 hypotheses, but references for 1"):
        score(["a", "b"], [("a",)])
    with pytest.raises(ValueError, match="hypothesis 2 has no reference"):
        score(["a", "b"], [("a",), ()])
    with pytest.raises(ValueError, match="got one text"):
        score("ab", [("a",), ("b",)])
    with pytest.raises(ValueError, match="got one text"):
        score(["a"], ["a"])


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_knows_which_end_is_good_and_names_itself_first(name):
    metric = METRICS[name]
    right, wrong = "this is quite a long text .", "nothing else agrees"
    good, bad = (metric.score([text], [(right,)]) for text in (right, wrong))
    assert next(iter(good)) == metric.name == name
    assert good[name] == pytest.approx(100.0 if metric.higher_is_better else 0.0)
    assert (bad[name] < good[name]) == metric.higher_is_better
    assert isinstance(metric.signature([(right,)]), str)
