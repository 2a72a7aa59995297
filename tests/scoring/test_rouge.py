"""ROUGE, counted by hand."""

import itertools
from functools import cache

import pytest

from sixfold.scoring.error_rates import common_length
from sixfold.scoring.metrics import METRICS
from sixfold.scoring.rouge import words


def scores(hypotheses, references):
    return [METRICS[name].score(hypotheses, references)[name] for name in ("rouge1", "rouge2", "rougeL")]


@pytest.mark.parametrize(
    ("hypothesis", "reference", "expected"),
    [
        # 5 of 6 words; the cat, on the, the mat of 5 pairs; the cat … on the mat
        ("the cat sat on the mat", "The cat is on the mat.", (10 / 12, 6 / 10, 10 / 12)),
        # 6 of 8 and of 9 words; the quick, quick brown of 7 and of 8; the quick brown … jumps … the
        (
            "The quick brown dog jumps on the log.",
            "The quick brown fox jumps over the lazy dog",
            (12 / 17, 4 / 15, 10 / 17),
        ),
        # Lin's example: the order of words matters to L, but not to 1
        ("police kill the gunman", "police killed the gunman", (3 / 4, 1 / 3, 3 / 4)),
        ("the gunman kill police", "police killed the gunman", (3 / 4, 1 / 3, 2 / 4)),
        # a word counts no more often than the reference has it
        ("the the the", "the cat", (2 / 5, 0, 2 / 5)),
        ("one", "one", (1, 0, 1)),  # it has no pair
        ("", "something", (0, 0, 0)),
        ("...", "", (0, 0, 0)),
    ],
)
def test_by_hand(hypothesis, reference, expected):
    assert scores([hypothesis], [(reference,)]) == pytest.approx([100 * f for f in expected])


def test_the_mean_over_the_texts():
    assert scores(["a b", "c d"], [("a b",), ("x y",)]) == [50.0, 50.0, 50.0]


def test_of_several_references_the_best_for_each_score_by_itself():
    # "b a" shares all words with the first reference, and a pair with the second
    assert scores(["b a"], [("a b", "b a c d e f")]) == pytest.approx([100, 100 * 2 / 6, 100 * 4 / 8])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Grüß Gott, 3×!", ["grüß", "gott", "3"]),
        ("don't snake_case\u2028A-Z", ["don", "t", "snake", "case", "a", "z"]),
        ("हिन्दी में", ["हिन्दी", "में"]),  # vowel signs belong to their word
        (" — ", []),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


def test_the_common_length_is_that_of_the_plain_recursion():
    def plain(left, right):
        @cache
        def c(i, j):
            if not i or not j:
                return 0
            return c(i - 1, j - 1) + 1 if left[i - 1] == right[j - 1] else max(c(i - 1, j), c(i, j - 1))

        return c(len(left), len(right))

    texts = ["".join(letters) for length in range(5) for letters in itertools.product("ab", repeat=length)]
    for left, right in itertools.product([*texts, "abcabcabca", "cab" * 30], [*texts, "bcbcaaab", "abc" * 25]):
        assert common_length(left, right) == plain(left, right)


def test_signature():
    signature = METRICS["rougeL"].signature
    assert signature([("a",), ("b",)]).startswith("nrefs:1|case:lc|tok:unicode-words|stem:no|")
    assert signature([("a",), ("b", "c")]).startswith("nrefs:var|")
