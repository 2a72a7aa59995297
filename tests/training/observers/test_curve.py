import math

from sixfold.training.observers.curve import TerminalCurve, chart


def test_a_chart_by_hand():
    """Two lines are sixteen eighths: the lowest value has one, the highest all, the middle one nine."""
    assert chart([8.0, 4.5, 1.0], 2) == [
        "8 ┤█▁",
        "1 ┤██▁",
    ]


def test_equal_values_are_a_flat_line():
    assert chart([2.0, 2.0], 2) == ["2 │".replace("│", "┤"), "2 ┤▁▁"]


def test_a_full_curve_merges_its_columns_in_pairs():
    curve = TerminalCurve(width=4)
    for value in (1.0, 3.0, 5.0, 7.0):
        curve.add(value)
    assert curve.means == [1, 3, 5, 7]
    curve.add(9.0)
    assert curve.means == [2, 6, 9]
    curve.add(11.0)
    assert curve.means == [2, 6, 10]


def test_what_is_not_finite_is_left_out_and_one_column_is_no_curve():
    curve = TerminalCurve()
    curve.add(math.nan)
    curve.add(1.0)
    assert curve.means == [1.0]
    assert curve.draw(3) == []
