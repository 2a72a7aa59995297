"""For each sentence on outputs a log that deserves it, and one that does not."""

import pytest

from sixfold.doctor import output_rules as rules
from tests.support.logs import course, valid


@pytest.mark.parametrize(
    ("rule", "name", "bad", "good", "words"),
    [
        (rules.empty_outputs, "output_empty", 0.02, 0.005, "2.0% of the outputs in validation are empty"),
        (rules.repeating_outputs, "output_repeating", 0.08, 0.02, "8.0% of the outputs in validation repeat"),
        (rules.long_outputs, "output_length", 1.31, 1.1, "too long: 1.31 times"),
        (rules.short_outputs, "output_length", 0.7, 0.93, "too short: 0.70 times"),
        (rules.copied_outputs, "output_copied", 0.3, 0.01, "30.0% of the outputs in validation are copies"),
    ],
)
def test_the_outputs_of_the_best_weights_are_judged(rule, name, bad, good, words):
    """The second of three validations is the best one."""
    losses = [3.0, 2.0, 2.5]
    assert words in rule(course(valid(losses, **{name: [good, bad, good]}))).text()
    assert rule(course(valid(losses, **{name: [bad, good, bad]}))) is None
    assert rule(course(valid(losses))) is None  # a log of an older version


def test_without_a_best_validation_the_last_is_judged():
    records = [{**record, "best": False} for record in valid([3.0, 2.0], output_empty=[0.0, 0.5])]
    assert rules.empty_outputs(course(records)) is not None
