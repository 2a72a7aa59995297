"""Ratios and rounds, by hand."""

import pytest

from sixfold.bench import race as module
from sixfold.bench.machine import machine, warning
from sixfold.bench.race import Contender, Ratio, race, ratio


def test_a_ratio_is_the_median_over_rounds_and_pairs_neighbours():
    assert ratio([2, 4, 6], [1, 2, 3]) == Ratio(2, 2, 2)  # each round twice as long, however the rounds differ
    found = ratio([1, 2, 9], [1, 1, 1])
    assert (found.median, found.low, found.high) == (2, 1, 9)  # of three rounds any may be the median of a resample
    assert str(Ratio(1.5, 1, 2)) == "1.500 [1.000, 2.000]"


def test_who_begins_changes_and_so_does_the_direction():
    order = []
    contenders = [Contender(name, lambda name=name: order.append(name) or len(order)) for name in "abc"]
    noted = {name: [] for name in "abc"}
    times = race(contenders, 3, 2, noted)
    assert "".join(order) == "aabbcc" + "aaccbb" + "ccaabb"
    assert noted["a"] == [1, 2, 7, 8, 15, 16]
    assert {len(seconds) for seconds in times.values()} == {3}


def test_no_round_begins_that_would_not_fit(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])

    def work():
        now[0] += 1
        return 0.0

    assert race([Contender("a", work)], 10, 1, {"a": []}, seconds=3.5)["a"] == [1, 1, 1]
    assert race([Contender("a", work)], 10, 1, {"a": []}, seconds=0)["a"] == [1]  # but one there is
    assert race([Contender("a", work)], 2, 1, {"a": []})["a"] == [1, 1]


def test_the_machine_is_described_and_a_crowd_is_told_of(monkeypatch):
    monkeypatch.setattr("sys.argv", ["x", "a b", "--c"])
    described = machine("sixfold")
    assert described["command"] == "sixfold 'a b' --c"
    assert described["cores"] >= 1
    assert {"cpu", "threads", "torch", "ctranslate2", "transformers", "x-transformers"} <= described.keys()
    assert warning(0.2) is None
    assert "not idle (load 3.0" in warning(3.0)


def test_a_step_that_fails_leaves_the_collector_on():
    import gc

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        race([Contender("a", fail)], 1, 1, {"a": []})
    assert gc.isenabled()
