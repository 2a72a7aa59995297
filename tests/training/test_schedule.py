import math

import pytest

from sixfold.config.schema import Training
from sixfold.training.schedule import rate

SCHEDULES = ("inverse_sqrt", "cosine", "linear", "constant", "warmup_stable_decay")


def rates(schedule, steps, warmup, learning_rate=1.0):
    training = Training(schedule=schedule, warmup=warmup, learning_rate=learning_rate)
    return [rate(training, step, steps) for step in range(1, steps + 1)]


def test_inverse_sqrt_is_the_form_of_2017():
    d, w = 512, 400
    ours = rates("inverse_sqrt", 2000, w, learning_rate=(d * w) ** -0.5)
    paper = [d**-0.5 * min(s**-0.5, s * w**-1.5) for s in range(1, 2001)]
    assert ours == pytest.approx(paper, rel=1e-12)
    assert ours.index(max(ours)) == w - 1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warm_up_is_a_line_to_the_peak(schedule):
    assert rates(schedule, 100, 4, learning_rate=8.0)[:4] == [2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_warm_up_the_first_step_has_the_peak(schedule):
    first, *rest = rates(schedule, 50, 0, learning_rate=0.5)
    assert first == 0.5
    assert all(0 < r <= 0.5 for r in rest)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 1), (1, 100), (2, 5), (7, 7), (10, 9)])
def test_runs_shorter_than_their_warm_up(schedule, steps, warmup):
    found = rates(schedule, steps, warmup)
    assert all(0 < r <= 1 and math.isfinite(r) for r in found)
    assert found[: steps // 2] == [s / max(warmup, 1) for s in range(1, steps // 2 + 1)]


def test_linear_comes_down_evenly_and_the_last_step_still_learns():
    assert rates("linear", 6, 2) == [0.5, 1.0, 0.8, 0.6, 0.4, 0.2]


def test_cosine_is_half_way_in_the_middle():
    found = rates("cosine", 9, 0)  # from step 1 at the peak, step 10 would be 0
    assert found[0] == 1
    assert found[3] == pytest.approx(0.75)  # 3 of 9 steps: (1 + cos 60°) / 2
    assert found[6] == pytest.approx(0.25)


def test_constant_stays():
    assert rates("constant", 5, 2) == [0.5, 1.0, 1.0, 1.0, 1.0]


def test_warmup_stable_decay_falls_in_the_last_fifth():
    found = rates("warmup_stable_decay", 20, 2)
    assert found[:16] == [0.5] + [1.0] * 15
    assert found[16:] == [0.8, 0.6, 0.4, 0.2]


def test_a_stable_rate_does_not_depend_on_the_length_of_the_run():
    assert rates("warmup_stable_decay", 100, 5)[:80] == rates("warmup_stable_decay", 400, 5)[:80]
