"""Recorded curves: their file, and the answer to "is this normal?"."""

import json
import math

import pytest

from sixfold.doctor.recorded import RecordedCurve, compare, points_of, recorded_curves, text_id
from sixfold.text import pronounce
from tests.support.logs import course, train, valid

POINTS = [(1_000_000, 4.0, 10.0), (4_000_000, 2.0, 30.0)]
KNOWN = RecordedCurve("known", "", "translation", "bpe", 8000, 500_000, "abc", 2_000_000, "bleu", POINTS)


def mine(tokens, loss, **others):
    return KNOWN._replace(name="mine", points=[(tokens, loss, None)], **others)


def test_curves_that_come_with_sixfold_are_in_order_and_can_be_written_again():
    curves = recorded_curves()
    assert {curve.name for curve in curves} >= {"pronounce", "help-en-de"}
    for curve in curves:
        assert RecordedCurve.from_json(curve.json()) == curve
        tokens, losses, _ = zip(*curve.points, strict=True)
        assert sorted(tokens) == list(tokens)
        assert losses[0] > losses[-1] > 0


def test_the_embedded_text_is_recognised():
    curve = next(curve for curve in recorded_curves() if curve.name == "pronounce")
    print_of_all = dict.fromkeys(("pronounce:train", "pronounce:valid", "pronounce:test"), pronounce.fingerprint())
    assert curve.text == text_id(print_of_all)
    assert curve.epoch_tokens == sum(len(said.split()) + 1 for _, said in pronounce.examples("train"))


def test_between_two_points_the_loss_follows_the_logarithm_of_the_tokens():
    assert KNOWN.loss(2_000_000) == pytest.approx(3.0)  # half-way from 1 to 4 million in factors
    assert (KNOWN.loss(1), KNOWN.loss(1e9)) == (4.0, 2.0)


@pytest.mark.parametrize(
    ("loss", "name", "word"), [(3.3, "normal", "as usual"), (4.0, "worse", "worse"), (2.0, "better", "better")]
)
def test_a_loss_is_compared_with_that_after_as_many_tokens(loss, name, word):
    found = compare(mine(2_000_000, loss), [KNOWN])
    assert found.name == name
    assert "on the same text (known, 2,000,000 parameters)" in found.sentence
    assert f"of 3.000 after 2 million tokens; this one has {loss:.3f} after 2 million tokens: {word}." in found.sentence


@pytest.mark.parametrize(
    "other",
    [{"task": "language_model"}, {"tokenizer": "characters"}, {"vocabulary": 11_000}, {"epoch_tokens": 5_000_000}],
)
def test_a_run_of_another_kind_or_size_is_not_compared(other):
    assert compare(mine(2_000_000, 3.0, **other), [KNOWN]).name == "not_compared"


def test_another_text_is_told_and_the_same_text_preferred():
    other = KNOWN._replace(name="other", text="def")
    assert "another text of about this size (known" in compare(mine(2e6, 3.0, text=None), [KNOWN]).sentence
    assert "the same text (other" in compare(mine(2e6, 3.0, text="def", epoch_tokens=600_000), [KNOWN, other]).sentence


def test_it_may_be_too_early_to_say():
    assert "Too early" in compare(mine(400_000, 5.0), [KNOWN]).sentence
    assert "No comparable run is known" in compare(KNOWN._replace(points=[]), [KNOWN]).sentence


def test_points_have_the_tokens_that_were_seen():
    """The log has lines at steps 100 and 200, and a validation between them."""
    made = course(train([4.0, 3.0], tokens=[1000, 3000]), valid([3.5], every=150, bleu=[7.0]))
    assert points_of(made) == [(2000, 3.5, 7.0)]


def test_a_record_is_one_line_of_json():
    assert "\n" not in KNOWN.json()
    assert json.loads(KNOWN.json())["points"] == [list(point) for point in POINTS]
    assert math.isclose(RecordedCurve.from_json(KNOWN.json()).loss(4e6), 2.0)
