"""For each sentence on a training a log that deserves it, and one that does not."""

import pytest

from sixfold.doctor import training_rules as rules
from sixfold.doctor.course import TextFacts
from tests.support.logs import course, event, train, valid

FALLING = [5.0, 4.0, 3.5, 3.2, 3.0, 2.9, 2.85, 2.82, 2.81, 2.80]


def sentence(rule, *records, **settings):
    """The sentence and the advice of a rule; empty if it finds nothing."""
    found = rule(course(*records, **settings))
    return "" if found is None else found.text()


def test_a_training_that_was_given_up_diverged():
    given_up = [event("gave up", 1000, reason="…")]
    said = sentence(rules.diverged, train(FALLING), given_up)
    assert "diverged at step 1,000" in said
    assert "--training.learning_rate 0.00033" in said
    assert not sentence(rules.diverged, train(FALLING))
    assert not sentence(rules.rate_too_high, train(FALLING), given_up, [event("rolled back", 900)])


@pytest.mark.parametrize(
    ("records", "sign"),
    [
        ([*train(FALLING), event("rolled back", 450)], "1 roll-back."),
        ([*train(FALLING), *(event("skipped", step) for step in (200, 300, 400))], "3 skipped steps."),
        (train([*FALLING, 4.5, *FALLING[5:], 3.5, 2.8]), "2 spikes of the loss."),
        (train(FALLING, gradient=[1.0, 1.0, 20.0, 1.0, 1.0, 1.0, 30.0, 1.0, 1.0, 1.0]), "2 bursts of the gradient."),
    ],
)
def test_a_rate_that_is_too_high(records, sign):
    said = sentence(rules.rate_too_high, records)
    assert said.startswith(f"The learning rate is too high: {sign}")


@pytest.mark.parametrize(
    "records",
    [
        [*train(FALLING), event("skipped", 200), event("skipped", 700)],
        train([*FALLING, 4.5, *FALLING[5:]]),
        train([3.0, 2.4, 3.0, 2.4, 3.0, 2.4, 3.0, 2.4]),  # noisy, and the noise is no spike
        train(FALLING, gradient=[9.0, 1.0, 1.2, 1.0, 0.9, 1.0, 1.1, 1.0, 1.0, 30.0]),
        train([9.0, 2.0, 9.0]),
    ],
)
def test_a_rate_that_is_not_too_high(records):
    assert not sentence(rules.rate_too_high, records)


def test_a_warm_up_that_the_run_did_not_leave():
    said = sentence(rules.rate_never_peaked, train(FALLING, every=9), training__warmup=100)
    assert "stopped at step 90, and the warm-up has 100 steps" in said
    assert not sentence(rules.rate_never_peaked, train(FALLING, every=10), training__warmup=100)


def test_a_warm_up_in_shares_counts_from_the_last_plan():
    plan = [event("plan", 3, steps=2000), event("plan", 60, steps=400)]
    minutes = {"training__steps": None, "training__minutes": 5, "training__warmup": "50 %"}
    assert "warm-up has 200 steps" in sentence(rules.rate_never_peaked, train(FALLING, every=10), plan, **minutes)
    assert not sentence(rules.rate_never_peaked, train(FALLING, every=40), plan, **minutes)


def test_overfitting_names_the_step_since_which():
    losses = [3.0, 2.5, 2.4, 2.6, 2.8]
    said = sentence(rules.overfitting, train([4, 3, 2, 1, 0.5], every=200), valid(losses, every=200))
    assert "since step 600: from there the validation loss rose from 2.400 to 2.800" in said
    assert "the training loss fell from 2.000 to 0.500" in said
    assert "--model.dropout 0.2" in said


def test_a_metric_that_still_improves_is_told():
    bleu = valid([3.0, 2.4, 2.6, 2.8], every=200, bleu=[1.0, 2.0, 3.0, 4.0])
    bleu[-1]["best"] = True
    said = sentence(rules.overfitting, train([4, 3, 2, 1], every=200), bleu)
    assert "The metric, bleu, improved until step 800, whose weights are kept." in said


@pytest.mark.parametrize(
    ("trained", "validated"),
    [
        ([4, 3, 2, 1, 0.5], [3.0, 2.5, 2.4, 2.3, 2.3]),
        ([4, 3, 2, 1, 0.5], [3.0, 2.5, 2.4, 2.41, 2.42]),  # a rise by less than 2 %
        ([4, 3, 2, 1, 0.5], [3.0, 2.5, 2.4, 2.3, 2.9]),  # one validation may be odd
        ([4, 3, 2, 2.5, 3], [3.0, 2.5, 2.4, 2.6, 2.8]),  # the training loss rises, too
    ],
)
def test_what_is_not_overfitting(trained, validated):
    assert not sentence(rules.overfitting, train(trained, every=200), valid(validated, every=200))


def test_a_run_that_was_still_improving():
    said = sentence(rules.still_improving, valid([4.0, 3.5, 3.0, 2.7], every=250))
    assert "from step 750 on the validation loss fell from 3.000 to 2.700" in said
    assert "--training.steps 2000" in said
    minutes = {"training__steps": None, "training__minutes": 5}
    said = sentence(
        rules.still_improving, valid([4, 3.5, 3, 2.7], every=250), [event("plan", 3, steps=1000)], **minutes
    )
    assert "--training.minutes 10" in said


@pytest.mark.parametrize(
    "losses",
    [[4.0, 3.0, 2.70, 2.69], [4.0, 3.0, 2.5, 2.6], [4.0, 3.0]],
    ids=["settled", "worse", "too few"],
)
def test_a_run_that_was_not_still_improving(losses):
    assert not sentence(rules.still_improving, valid(losses, every=1000 // len(losses)))


def test_a_run_that_patience_or_a_signal_ended_is_not_told_to_train_longer():
    assert not sentence(rules.still_improving, valid([4.0, 3.5, 3.0, 2.7], every=200))
    assert not sentence(rules.still_improving, valid([4.0, 3.5, 3.0, 2.7], every=250), stopped=False)


RARE, ALIKE = TextFacts(1.4, 20.0, 21.0), TextFacts(0.05, 20.0, 21.0)


def test_validation_text_of_another_kind():
    unlike = train([4.0, 3.0, 2.5]), valid([6.0, 5.5, 5.2])
    said = sentence(rules.validation_unlike_training, *unlike, text=RARE)
    assert "at step 100 its loss was 6.000, that of the training text 4.000" in said
    assert "rarer in the training text (by 1.4 nats per token)" in said
    said = sentence(rules.validation_unlike_training, *unlike, text=TextFacts(0.0, 20.0, 60.0))
    assert "its texts are 3.0 times as long" in said


@pytest.mark.parametrize(
    ("losses", "text"), [([6.0, 5.5], ALIKE), ([4.2, 5.0], RARE), ([6.0, 5.5], None)], ids=["text", "loss", "gone"]
)
def test_validation_text_of_the_same_kind(losses, text):
    assert not sentence(rules.validation_unlike_training, train([4.0, 3.0]), valid(losses), text=text)


def test_a_run_within_its_first_epoch():
    assert "within the first epoch" in sentence(rules.first_epoch, train(FALLING, epoch=0))
    assert not sentence(rules.first_epoch, train(FALLING, epoch=1))
    assert not sentence(rules.first_epoch, train(FALLING, epoch=0), stopped=False)


def line(start, end, lines=15):
    return [start + (end - start) * number / (lines - 1) for number in range(lines)]


def test_a_rate_that_is_too_low():
    said = sentence(rules.rate_too_low, train(line(6.0, 4.6)))
    assert "from 5.500 to 5.000, then to 4.600" in said
    assert "--training.learning_rate 0.003" in said


@pytest.mark.parametrize(
    "records",
    [
        train([6 / number**0.5 for number in range(1, 16)]),  # slower and slower
        train(line(6.0, 4.6), gradient=2.0),  # clipped
        train(line(6.0, 4.6), learning_rate=5e-4),  # never at the full rate
        train(line(6.0, 5.8)),
        train(line(6.0, 4.6, lines=8)),
    ],
    ids=["bends", "clipped", "not full", "flat", "few lines"],
)
def test_a_rate_that_is_not_too_low(records):
    assert not sentence(rules.rate_too_low, records)


def test_a_run_without_validation_text():
    assert "--data.valid" in sentence(rules.not_validated, train(FALLING))
    assert not sentence(rules.not_validated, train(FALLING), valid(FALLING))
    assert not sentence(rules.not_validated, train(FALLING[:5]))  # it was stopped before a validation was due


def test_losses_that_are_not_finite_are_left_out():
    losses = [3.0, 2.5, 2.4, "NaN", 2.6, "Infinity", 2.8]
    assert "since step 300" in sentence(rules.overfitting, train([7, 6, 5, 4, 3, 2, 1]), named(losses))


def named(losses):
    finite = valid([loss if isinstance(loss, float) else 9.0 for loss in losses])
    return [{**record, "loss": loss} for record, loss in zip(finite, losses, strict=True)]
