"""BLEU, chrF and TER are sacreBLEU's own, and the references need not be equally many."""

import math

import pytest
import sacrebleu
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from sixfold.scoring.metrics import METRICS

HYPOTHESES = ["The cat sat on the mat.", "A dog barks loudly at me.", "It is raining again today."]
REFERENCES = [
    ("The cat sat on the mat.", "A cat was on the mat."),
    ("The dog barks at me loudly.",),
    ("It rains again today.", "It is raining today.", "Rain again."),
]
FIRST = [several[:1] for several in REFERENCES]
bleu, chrf, ter = METRICS["bleu"], METRICS["chrf"], METRICS["ter"]


def test_equal_to_sacrebleu_with_one_reference():
    texts = [several[0] for several in FIRST]
    assert bleu.score(HYPOTHESES, FIRST) == {"bleu": sacrebleu.corpus_bleu(HYPOTHESES, [texts]).score}
    assert chrf.score(HYPOTHESES, FIRST) == {"chrf": sacrebleu.corpus_chrf(HYPOTHESES, [texts]).score}
    assert ter.score(HYPOTHESES, FIRST) == {"ter": sacrebleu.corpus_ter(HYPOTHESES, [texts]).score}


def test_bleu_by_hand():
    # 4 of 5 words, 3 of 4 pairs, 2 of 3 triples, 1 of 2 quadruples; equally long
    expected = 100 * math.exp(sum(map(math.log, (4 / 5, 3 / 4, 2 / 3, 1 / 2))) / 4)
    assert bleu.score(["a b c d x"], [("a b c d e",)])["bleu"] == pytest.approx(expected)


def test_a_missing_reference_is_as_if_another_were_given_twice():
    # Neither clipped counts, nor the closest length, nor the best F change by a reference that is there already.
    filled = [several + several[:1] * (3 - len(several)) for several in REFERENCES]
    for metric in (bleu, chrf):
        assert metric.score(HYPOTHESES, REFERENCES) == metric.score(HYPOTHESES, filled)
        assert metric.score(HYPOTHESES, REFERENCES) != metric.score(HYPOTHESES, FIRST)


def test_a_missing_reference_is_not_an_empty_one():
    # An empty one would be nearest in length to the short hypothesis, and no penalty would be left.
    short, long = "a b c d e", "a b c d e f g h i j k l m n o"
    score = bleu.score([short, long], [(long,), (long, long)])["bleu"]
    assert score == pytest.approx(100 * math.exp(1 - 30 / 20))


def test_the_score_does_not_depend_on_the_order_of_texts():
    backwards = bleu.score(HYPOTHESES[::-1], REFERENCES[::-1])
    assert backwards == bleu.score(HYPOTHESES, REFERENCES)


def test_signatures_are_what_sacrebleu_says_after_scoring():
    for metric, theirs in ((bleu, BLEU()), (chrf, CHRF()), (ter, TER())):
        theirs.corpus_score(HYPOTHESES, [[several[0] for several in REFERENCES]])
        assert metric.signature(FIRST) == str(theirs.get_signature())
        assert metric.signature(FIRST).startswith("nrefs:1|")
        assert metric.signature(REFERENCES).startswith("nrefs:var|")


def test_empty_hypotheses_score_zero():
    assert bleu.score([""], [("something",)]) == {"bleu": 0.0}
    assert chrf.score([""], [("something",)]) == {"chrf": 0.0}
    assert ter.score([""], [("something",)]) == {"ter": 100.0}


def test_tokenised_text_is_scored_without_a_word(caplog, capsys):
    bleu.score(["a b ."] * 200, [("a b .",)] * 200)
    assert not caplog.records
    assert capsys.readouterr() == ("", "")


def test_ter_by_hand():
    assert ter.score(["b c d a"], [("a b c d",)]) == {"ter": 25.0}  # one shift
    assert ter.score(["a b x d"], [("a b c d",)]) == {"ter": 25.0}  # one substitution
    assert ter.score(["A B C D"], [("a b c d",)]) == {"ter": 0.0}  # it does not know capitals
    # one edit from the nearer of two references, over their mean length
    assert ter.score(["a b c"], [("a b c d", "x y")]) == {"ter": pytest.approx(100 / 3)}


def test_several_references_are_handed_to_sacrebleu_as_they_are():
    streams = [[several[i] if i < len(several) else None for several in REFERENCES] for i in range(3)]
    for metric, theirs in ((bleu, BLEU()), (chrf, CHRF()), (ter, TER())):
        assert metric.score(HYPOTHESES, REFERENCES) == {metric.name: theirs.corpus_score(HYPOTHESES, streams).score}
