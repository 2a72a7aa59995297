import json
import math
import random

import pytest

from sixfold.training.guard import CALM, GOOD_STRETCH, ROLL_BACKS, SUSTAINED, Guard, Verdict

GO, SKIP, ROLL_BACK, STOP = Verdict
NAN, INF = math.nan, math.inf


def verdicts(guard, losses, norm=1.0):
    return [guard.judge(loss, norm) for loss in losses]


def trained(loss=2.0, steps=100):
    """A guard that has seen a quiet run."""
    guard = Guard()
    assert set(verdicts(guard, [loss + 0.01 * (i % 2) for i in range(steps)])) == {GO}
    return guard


def falling(steps, start=9.0, end=2.0, noise=0.1, seed=0):
    """Losses as of a sane run."""
    chance = random.Random(seed)
    return [end + (start - end) * math.exp(-step / 300) + chance.gauss(0, noise) for step in range(steps)]


@pytest.mark.parametrize(
    ("loss", "norm", "words"),
    [
        (NAN, 1.0, "the loss is NaN and the norm of the gradient is 1"),
        (INF, 1.0, "the loss is infinite"),
        (2.0, NAN, "the loss is 2 and the norm of the gradient is NaN"),
        (2.0, INF, "gradient is infinite"),
    ],
)
def test_a_step_that_is_not_finite_is_skipped(loss, norm, words):
    guard = trained()
    assert guard.judge(loss, norm) is SKIP
    assert words in guard.reason
    assert guard.judge(2.0, 1.0) is GO
    assert guard.reason is None
    assert guard.rate == 1


def test_three_in_a_row_roll_back_and_halve_the_rate():
    guard = trained()
    assert verdicts(guard, [NAN, INF, NAN]) == [SKIP, SKIP, ROLL_BACK]
    assert guard.rate == 0.5
    assert verdicts(guard, [NAN, NAN, NAN]) == [SKIP, SKIP, ROLL_BACK]
    assert guard.rate == 0.25


def test_every_other_step_is_too_many():
    assert verdicts(trained(), [NAN, 2.0] * 3 + [NAN]) == [SKIP, GO, SKIP, GO, SKIP, GO, ROLL_BACK]


def test_one_now_and_then_is_only_skipped():
    guard = trained()
    assert set(verdicts(guard, ([NAN] + [2.0] * 10) * 200)) == {GO, SKIP}


def test_a_run_that_begins_with_nan_goes_back_to_its_start_and_then_gives_up():
    guard = Guard()
    assert guard.healthy, "step 0 is a state to go back to"
    again = [SKIP, SKIP, ROLL_BACK]
    assert verdicts(guard, [NAN] * 12) == again * 3 + [SKIP, SKIP, STOP]
    assert guard.rate == 1 / 8
    assert "the loss is NaN" in guard.gave_up
    assert "0.125 of the learning rate" in guard.gave_up
    assert "training.learning_rate" in guard.gave_up
    assert guard.judge(1.0, 1.0) is STOP
    assert not guard.healthy


def test_a_loss_that_jumps_and_stays_rolls_back():
    guard = trained()
    found = verdicts(guard, [6.0] * SUSTAINED)
    assert found == [GO] * (SUSTAINED - 1) + [ROLL_BACK]
    assert "the mean loss was 2" in guard.reason
    assert "this one is 6" in guard.reason


def test_a_loss_that_climbs_for_hundreds_of_steps_rolls_back():
    """So slowly that a running mean would go up with it."""
    assert ROLL_BACK in verdicts(trained(), [2.0 + 0.002 * step for step in range(500)])


def test_a_loss_that_jumps_in_the_first_steps_rolls_back():
    assert ROLL_BACK in verdicts(Guard(), [9.2, 9.1, 40.0, *[15.0] * SUSTAINED])


def test_a_jump_that_is_over_before_long_is_left_alone():
    guard = trained()
    assert set(verdicts(guard, [6.0] * (SUSTAINED // 2) + [2.0] * 100)) == {GO}


def test_single_outliers_are_left_alone():
    losses = falling(4000)
    chance = random.Random(1)
    odd = [chance.uniform(3, 1e30) if chance.random() < 0.1 else loss for loss in losses]
    assert set(verdicts(Guard(), odd)) == {GO}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("noise", [0.01, 0.2, 0.6])
def test_sane_runs_are_left_alone(noise, seed):
    assert set(verdicts(Guard(), falling(3000, noise=noise, seed=seed))) == {GO}


def test_a_few_noisy_batches_again_and_again_are_left_alone():
    """A small corpus: its epochs have one easy batch, two usual ones and a hard one, and it is learnt by heart."""
    levels = [0.3, 1.0, 1.0, 2.5]
    assert set(verdicts(Guard(), [levels[s % 4] * (0.05 + 4 * math.exp(-s / 200)) for s in range(4000)])) == {GO}


def test_after_a_roll_back_the_loss_may_be_as_high_as_it_was_at_the_checkpoint():
    guard = trained()
    assert verdicts(guard, [6.0] * SUSTAINED)[-1] is ROLL_BACK
    assert set(verdicts(guard, falling(500, start=9.0))) == {GO}


def test_three_roll_backs_then_it_gives_up():
    guard, found = trained(), []
    for _ in range(ROLL_BACKS + 1):
        found += [v for v in verdicts(guard, [6.0] * SUSTAINED) if v is not GO]
        verdicts(guard, [2.0] * 50)
    assert found == [ROLL_BACK] * ROLL_BACKS + [STOP]
    assert "losses stay above" in guard.gave_up


def test_a_good_stretch_gives_three_more():
    guard = trained()
    for n in range(1, 8):
        assert verdicts(guard, [6.0] * SUSTAINED)[-1] is ROLL_BACK
        assert guard.rate == 0.5**n
        verdicts(guard, [2.0] * GOOD_STRETCH)
    assert guard.gave_up is None


def test_what_is_healthy():
    guard = trained()
    assert guard.healthy
    guard.judge(6.0, 1.0)
    assert not guard.healthy
    verdicts(guard, [2.0] * (CALM - 1))
    assert not guard.healthy
    guard.judge(2.0, 1.0)
    assert guard.healthy
    guard.judge(NAN, 1.0)
    assert not guard.healthy


def test_after_a_roll_back_only_what_is_as_good_as_before_is_healthy():
    guard = trained()
    verdicts(guard, [6.0] * SUSTAINED)
    verdicts(guard, [4.0] * 300)
    assert not guard.healthy, "it has not recovered, and must not take the good state's place"
    verdicts(guard, [2.0] * 300)
    assert guard.healthy


def wild(steps, chance):
    """Everything that can happen, in stretches."""
    losses = []
    while len(losses) < steps:
        level = chance.choice([2.0, 2.0, 2.2, 6.0, 1e300, NAN])
        losses += [level + chance.gauss(0, 0.1) for _ in range(chance.choice([1, 2, 30, 60, 300]))]
    return [(loss, chance.choice([1.0] * 60 + [NAN, INF])) for loss in losses[:steps]]


def test_the_state_is_strict_json_after_losses_near_the_largest_number():
    guard = Guard()
    verdicts(guard, [1.5e308, 1e307] * 10 + [NAN] * 3)
    saved = json.dumps(guard.state(), allow_nan=False)
    again = Guard()
    again.load_state(json.loads(saved))
    assert again.state() == guard.state()
    assert again.judge(1e307, 1.0) == guard.judge(1e307, 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_a_restored_guard_judges_the_same(seed):
    chance = random.Random(seed)
    steps = wild(1500, chance)
    whole, parts, found = Guard(), Guard(), []
    expected = [(whole.judge(*step), whole.reason, whole.rate, whole.healthy, whole.gave_up) for step in steps]
    for step in steps:
        if chance.random() < 0.05:
            saved = json.dumps(parts.state(), allow_nan=False)
            parts = Guard()
            parts.load_state(json.loads(saved))
        found.append((parts.judge(*step), parts.reason, parts.rate, parts.healthy, parts.gave_up))
    assert found == expected
    assert parts.state() == whole.state()
    assert len({verdict for verdict, *_ in found}) > 1
