"""The study's table: all rows, and agreement with what it published."""

import json
import sys

import pytest

from sixfold.cli import main
from sixfold.narang.counts import count_row
from sixfold.narang.rows import BASELINE, ROWS


def test_there_are_52_rows_of_different_names():
    assert len(ROWS) == len({row.name for row in ROWS}) == 52


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_counts_agree_with_the_published_ones(row):
    counted = count_row(row)
    assert counted.parameters == pytest.approx(counted.published_parameters, abs=1e6)
    assert counted.operations_study == counted.operations + sum(counted.terms.values())
    if row.name == "Funnel Transformer":  # its published operations are a quarter of the computed ones
        assert counted.operations_study == pytest.approx(4 * counted.published_operations, rel=0.03)
    else:
        assert counted.operations_study == pytest.approx(counted.published_operations, rel=0.01)


def test_look_ups_of_the_baseline_by_hand():
    (vanilla, *_) = ROWS
    assert count_row(vanilla).terms == {"look_ups": BASELINE.vocab * 768 * (512 + 114) * 128}


def test_the_command_gives_the_rows_as_json(monkeypatch, capsys):
    monkeypatch.setattr("sixfold.narang.rows.ROWS", ROWS[:2])
    monkeypatch.setattr("sixfold.narang.counts.ROWS", ROWS[:2])
    monkeypatch.setattr(sys, "argv", ["sixfold", "count", "--study", "--json"])
    with pytest.raises(SystemExit):
        main()
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["Vanilla Transformer", "GeLU"]
    wanted = {"parameters", "published_parameters", "operations", "operations_study", "published_operations"}
    assert wanted <= rows[0].keys()
