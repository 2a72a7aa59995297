"""GLEU, counted by hand; BLEU of single texts against sacreBLEU."""

import random

import pytest
from sacrebleu import sentence_bleu

from sixfold.scoring.gleu import gleu_of_items
from sixfold.scoring.metrics import METRICS


@pytest.mark.parametrize(
    ("hypothesis", "reference", "expected"),
    [
        # 5 words, 3 pairs, 2 triples and 1 of four words, of 6 + 5 + 4 + 3
        ("the cat sat on the mat", "the cat sat on a mat", 11 / 18),
        # two of seven words, of 7 + 6 + 5 + 4 and 6 + 5 + 4 + 3
        ("the the the the the the the", "the cat is on the mat", 2 / 22),
        # a, b, a b of 2 + 1 and 4 + 3 + 2 + 1
        ("a b", "a b c d", 3 / 10),
        ("a", "a", 1),
        ("a", "", 0),
        ("", "", 1),
    ],
)
def test_by_hand_and_the_same_when_exchanged(hypothesis, reference, expected):
    for pair in ((hypothesis, reference), (reference, hypothesis)):
        assert gleu_of_items(*map(str.split, pair)) == pytest.approx(expected)


def test_it_is_1_for_equal_texts_only():
    chance = random.Random(3)
    for _ in range(200):
        texts = [chance.choices("ab", k=chance.randint(0, 6)) for _ in range(2)]
        assert (gleu_of_items(*texts) == 1) == (texts[0] == texts[1])


def test_the_metric_is_the_mean_over_the_texts_with_the_best_reference_of_each():
    score = METRICS["gleu"].score(["a b", "c d"], [("a b c d", "x"), ("c d",)])
    assert score == {"gleu": pytest.approx(100 * (3 / 10 + 1) / 2)}


def test_signs_are_words_of_their_own():
    assert METRICS["gleu"].score(["Hello, world."], [("Hello , world .",)]) == {"gleu": 100}


def test_the_bleu_of_texts_is_sacrebleus_of_each():
    texts, references = ["the cat sat", "a", "b c d e f"], [("the cat sat down",), ("a", "x"), ("f e d c b",)]
    each = [sentence_bleu(text, list(own)).score for text, own in zip(texts, references, strict=True)]
    assert METRICS["sentence_bleu"].score(texts, references)["sentence_bleu"] == pytest.approx(sum(each) / 3)
    assert METRICS["bleu"].score(texts[1:2], references[1:2])["bleu"] == 0  # a text of one word has no pair
    assert each[1] == pytest.approx(100)
    assert "eff:yes" in METRICS["sentence_bleu"].signature(references)
