"""Pictures of attention, line by line."""

import pytest
import torch
from rich.cells import cell_len

from sixfold.decoding.attention_picture import picture, readable, shade

WEIGHTS = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.5, 0.25], [0.0, 0.1, 0.9]])


def test_three_by_three():
    assert picture(WEIGHTS, ["D", "AO", "G"], ["d", "o", "g"]).splitlines() == [
        "   d o g",
        " D ██",
        "AO ░░▒▒░░",
        " G     ██",
    ]


def test_names_of_columns_go_down_and_end_at_the_bottom():
    assert picture(WEIGHTS[:1], ["x"], ["ab", "c", "def"]).splitlines() == [
        "      d",
        "  a   e",
        "  b c f",
        "x ██",
    ]


def test_shades():
    assert [shade(weight) for weight in (0, 0.12, 0.13, 0.5, 0.8, 1)] == [" ", " ", "░", "▒", "▓", "█"]
    assert [shade(weight) for weight in (-1.0, 7.0, float("nan"), float("inf"))] == [" ", "█", " ", "█"]


def test_what_does_not_fit_goes_on_below():
    weights = torch.eye(5)
    drawn = picture(weights, list("vwxyz"), list("abcde"), width=8)
    first, second = drawn.split("\n\n")
    assert first.splitlines()[:2] == ["  a b c", "v ██"]
    assert second.splitlines() == ["  d e", "v", "w", "x", "y ██", "z   ██"]
    assert max(map(len, drawn.splitlines())) <= 8


def test_no_text_can_drive_the_terminal():
    assert readable("\x1b[2J") == "\\x1b[2J"
    assert readable("a b\n\t\u202e\u2028") == "a▁b\\n\\t\\u202e\\u2028"
    drawn = picture(WEIGHTS, ["\x1b[31m", "\n", "[bold]"], ["\r", "\a", "[/]"])
    assert all(c.isprintable() or c == "\n" for c in drawn)
    assert len(drawn.splitlines()) == 7  # the longest column name has four letters


def test_wide_letters_keep_the_columns_straight():
    lines = picture(torch.eye(3), ["犬", "a", "é"], ["猫", "b", "が"]).splitlines()
    assert lines[0] == "   猫b が"
    assert [cell_len(line) for line in lines[1:]] == [5, 7, 9]


def test_weights_of_another_shape():
    with pytest.raises(ValueError, match=r"2 rows and 3 columns .* got \(3, 3\)"):
        picture(WEIGHTS, ["a", "b"], ["a", "b", "c"])
