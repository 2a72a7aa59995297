"""How many steps a run has: by steps, by minutes, or as another run had."""

import pytest

from sixfold.config.schema import Training
from sixfold.training import pace
from sixfold.training.pace import FIRST, UNKNOWN, ByMinutes, Pace, Replayed
from sixfold.training.schedule import rate


def test_a_run_by_steps_has_equal_steps():
    plan = Pace([(0, 8)])
    assert [plan.share(step) for step in (0, 2, 8, 9)] == [0, 0.25, 1, 1]
    assert plan.virtual_step(3) == 3
    assert plan.plan(4, 2) is None
    assert plan.state() == {}


def test_what_is_left_is_spread_over_the_steps_that_are_left():
    plan = Pace([(0, 12)])
    plan.add(6, 9)  # half is done; the other half takes 3 steps more
    assert [plan.share(step) for step in (3, 6, 7, 8, 9)] == pytest.approx([0.25, 0.5, 4 / 6, 5 / 6, 1])
    assert plan.virtual_step(7) == pytest.approx(6)  # of 9 equal steps


@pytest.mark.parametrize("schedule", ["cosine", "linear", "warmup_stable_decay", "inverse_sqrt"])
def test_the_rate_does_not_jump_when_the_plan_changes(schedule):
    training = Training(schedule=schedule, warmup=0.1, learning_rate=1.0)
    plan = Pace([(0, 1000)])
    before = rate(training, plan.virtual_step(600), plan.steps)
    plan.add(600, 800)
    assert rate(training, plan.virtual_step(600), plan.steps) == pytest.approx(before, rel=5e-3)
    if schedule != "inverse_sqrt":
        assert rate(training, plan.virtual_step(800), plan.steps) < 0.02


def test_a_validation_is_due_at_shares_of_the_run():
    plan = Pace([(0, 40)])
    assert [step for step in range(41) if plan.crosses(step, 0.25)] == [10, 20, 30, 40]
    assert [step for step in range(41) if plan.crosses(step, 16)] == [0, 16, 32]
    odd = Pace([(0, 7)])
    assert [step for step in range(8) if odd.crosses(step, 0.5)] == [4, 7]


class Machine:
    """A machine whose clock the test moves."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(pace.time, "monotonic", lambda: self.now)

    def train(self, plan, seconds, *, until=10**9, every=0.25, validation=0.0):
        """Steps that take seconds(step), until the plan's end. → the last step"""
        step = 0
        while step < plan.steps and step < until:
            step += 1
            self.now += seconds(step)
            plan.tell_step(seconds(step))
            if steps := plan.plan(step, every):
                plan.add(step, steps)
            if plan.crosses(step, every) or step == plan.steps:
                self.now += validation
                plan.tell_validation(validation)
        return step


@pytest.mark.parametrize("validation", [0.0, 3.0])
def test_a_run_by_minutes_takes_them(monkeypatch, validation):
    machine = Machine(monkeypatch)
    plan = ByMinutes(2, started=machine.now - 10)  # ten seconds were spent on preparation
    machine.train(plan, lambda step: 0.2 if step > 1 else 1.5, validation=validation)
    assert 0.95 * 120 < plan.spent() <= 1.03 * 120


def test_it_takes_them_on_a_machine_that_becomes_half_as_fast(monkeypatch):
    machine = Machine(monkeypatch)
    plan = ByMinutes(2)
    machine.train(plan, lambda step: 0.1 if step < 600 else 0.2)
    assert 0.95 * 120 < plan.spent() <= 1.05 * 120
    assert plan.share(plan.steps) == 1


def test_it_ends_when_the_time_is_over(monkeypatch):
    machine = Machine(monkeypatch)
    plan = ByMinutes(0.5)
    assert machine.train(plan, lambda step: 40.0) <= FIRST
    assert plan.steps <= FIRST


def test_before_its_speed_is_known_a_run_hardly_learns():
    training = Training(schedule="cosine", warmup=0.1, learning_rate=1.0)
    plan = ByMinutes(4)
    assert plan.steps == UNKNOWN
    assert rate(training, plan.virtual_step(FIRST), plan.steps) < 1e-4


def test_time_while_interrupted_does_not_count(monkeypatch):
    machine = Machine(monkeypatch)
    plan = ByMinutes(2)
    machine.train(plan, lambda step: 0.1, until=300)
    state = plan.state()
    machine.now += 10_000
    again = ByMinutes(2)
    again.load_state(state)
    assert again.spent() == pytest.approx(30)
    assert again.events == plan.events
    assert again.plan(301, 0.25) is None  # nothing is due that was due before


def test_a_replayed_plan_is_the_plan():
    plan = Replayed([[3, 20], [10, 16]])
    for step in range(1, 17):
        if steps := plan.plan(step, 0.1):
            plan.add(step, steps)
    assert plan.events == [(0, UNKNOWN), (3, 20), (10, 16)]


@pytest.mark.parametrize("value", ["10 %", "10%", 0.1, " 10.0 % "])
def test_a_share_of_the_run(value):
    assert Training(warmup=value).warmup == pytest.approx(0.1)


@pytest.mark.parametrize("value", ["a lot", -1, 1.5, "120 %", "0 %", True, None, 10**12])
def test_what_is_neither_steps_nor_a_share(value):
    with pytest.raises(ValueError, match="give steps"):
        Training(warmup=value)
