"""Threads, time and progress: as many as are allowed, as long as was asked for, and a line for whatever is done."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from sixfold.bench import decoding, race, report, training
from sixfold.bench import training_contenders as learners
from sixfold.bench.decoding import _Case
from sixfold.bench.decoding_contenders import BATCH, DecodingContender, Search, TimedTranslation
from sixfold.bench.machine import warning
from sixfold.bench.options import BenchOptions
from sixfold.bench.race import NO_TIME, Contender, Ratio, ratio, told_rounds
from sixfold.bench.training import _learners
from sixfold.core.threads import usual_threads
from tests.support.subjects import SMALL

SETTINGS = [word for key, value in SMALL.items() for word in (f"--{key}", value)]
QUICK = ["--rounds", 1, "--seconds", 0.1, "--peers", "none", "--sentences", 4, "--beams", 1, "--steps", 1]


@pytest.fixture
def clock(monkeypatch):
    """A clock that only work moves on."""
    now = [0.0]
    for module in (race, decoding, training, report):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def writer(clock, name, each, choices=(1, 2), start=0.0):
    """One who takes `each` seconds for a line, and with each choice first `start` seconds."""
    begun = set()

    def write(lines, choice):
        clock[0] += each * len(lines) + (start if choice not in begun else 0)
        begun.add(choice)
        return [TimedTranslation(line, 1) for line in lines]

    return DecodingContender(name, "float32", write, choices, "batch", processes=start > 0)


LINES = [str(number) for number in range(1000)]


@pytest.mark.parametrize("seconds", [10, 100])
def test_a_case_takes_the_time_it_has(clock, seconds):
    writers = [
        writer(clock, "sixfold float32", 0.05),
        writer(clock, "sixfold float32, 9 workers", 0.05, start=7.0),
        writer(clock, "ctranslate2 float32", 0.04),
    ]
    case = _Case(Search(1, BATCH, 9), LINES, float(seconds), 4.0)
    found = case.race(writers, 10)
    assert 0.5 * seconds < clock[0] <= 1.1 * seconds
    assert ("sixfold float32, 9 workers" in case.late) == (seconds == 10)
    assert ("sixfold float32, 9 workers" in found["contenders"]) == (seconds == 100)
    assert "ctranslate2 float32" in found["contenders"]
    assert case.start == (4 if seconds == 10 else pytest.approx(7.1))  # as was seen


def test_ours_is_measured_even_without_time(clock):
    case = _Case(Search(1, BATCH, 9), LINES, 0.0, 4.0)
    found = case.race([writer(clock, "sixfold float32", 1.0), writer(clock, "ctranslate2 float32", 1.0)], 10)
    assert list(found["contenders"]) == ["sixfold float32"]
    assert case.late == ["ctranslate2 float32"]
    assert (found["rounds"], found["sentences"]) == (1, 8)
    assert clock[0] == 2 + 8 + 8 + 8  # to warm up, to see how fast it is, to choose once, and a round


def test_a_peer_in_training_that_there_is_no_time_for_is_left_out(clock, monkeypatch):
    def learner(name):
        def step():
            clock[0] += 1
            return 0.0

        return learners.TrainingContender(Contender(name, step), "sizes")

    monkeypatch.setattr(training, "absence", lambda name: None)
    monkeypatch.setattr(training, "ours", lambda subject, steps: learner("sixfold"))
    monkeypatch.setattr(training, "peer", lambda name, subject, steps: learner(name))
    found, left_out, cost = _learners(None, ["one", "two"], [], 7.0)
    assert ([each.contender.name for each in found], left_out) == (["sixfold", "one"], {"two": NO_TIME})
    assert (cost, clock[0]) == (2, 4)


def test_sections_share_the_time_that_is_left_and_an_overrun_is_said(clock, monkeypatch):
    given = {}

    def section(name, takes):
        def measure(subject, wishes, seconds, tell):
            given[name] = seconds
            clock[0] += takes
            return {}

        return report.BenchSection(measure, None, None)

    sections = {name: section(name, takes) for name, takes in (("training", 60), ("decoding", 25), ("length", 45))}
    monkeypatch.setattr(report, "SECTIONS", sections)
    lines, subject = [], SimpleNamespace(json=dict)
    found = report.bench(subject, BenchOptions(seconds=100), lines.append)
    assert given == pytest.approx({"training": 20, "decoding": 40 * 5 / 8, "length": 15})
    assert lines == ["training: done in 60 s", "decoding: done in 25 s", "length: done in 45 s"]
    assert found["warnings"][-1].startswith("this took 130 s instead of 100 s, because one round of each row")
    assert report._overrun(124, 100) == []


def test_a_busy_machine_is_named():
    assert warning(0.4) is None
    assert warning(3.0).endswith("other processes are running, so timings are unreliable")


def test_of_fewer_than_three_rounds_there_is_no_interval():
    assert ratio([3.0], [2.0]) == Ratio(1.5, None, None)
    assert ratio([3.0, 1.0], [2.0, 2.0]) == Ratio(1.0, None, None)
    assert str(ratio([3.0], [2.0])) == "1.500"
    assert "[" in str(ratio([3.0, 3.0, 3.0], [2.0, 2.0, 2.0]))
    assert [told_rounds(number) for number in (1, 2, 3)] == [
        "one round, no interval",
        "2 rounds, no interval",
        "3 rounds",
    ]


def test_a_pipe_is_told_what_is_done(sixfold):
    code, out, err = sixfold(
        "bench", "transformer-base", *SETTINGS, *QUICK, "--threads", 1, "--only", "training,decoding"
    )
    assert code == 0, err
    lines = err.splitlines()
    assert lines[0] == "training …"
    assert [line.partition(" in ")[0] for line in lines if ": done" in line] == ["training: done", "decoding: done"]
    assert "decoding, greedy, batch: 4 sentences, one round, no interval" in lines
    assert "one round, no interval" in out
    assert "[" not in "".join(line for line in out.splitlines() if line.startswith(("sixfold  ", "greedy")))


def test_threads_are_those_that_torch_has(sixfold, tmp_path, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr("sixfold.core.threads.cores", lambda: 8)
    try:
        code, _, err = sixfold("bench", "transformer-base", *SETTINGS, *QUICK, "--only", "training", "--json", "x.json")
        assert code == 0, err
    finally:
        torch.set_num_threads(before)
    found = json.loads((tmp_path / "x.json").read_text())
    assert (found["wishes"]["threads"], found["machine"]["threads"]) == (1, 1)


def test_threads_are_no_more_than_cores(monkeypatch):
    monkeypatch.setattr("sixfold.core.threads.cores", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert usual_threads() == 3


def test_the_environment_says_how_many_threads_there_are():
    asking = "from sixfold.core import threads; threads.cores = lambda: 9; print(threads.usual_threads())"
    found = subprocess.run(
        [sys.executable, "-c", asking], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert found.stdout == "1\n", found.stderr
