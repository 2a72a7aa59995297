"""The log: strict JSON, line by line, which can be cut back."""

import json
import math
import sys
import types

import numpy as np
import pytest

from sixfold.runs.run import Run
from sixfold.training.observers.log import Log, strict
from sixfold.training.observers.tensorboard import Board


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_a_record_is_a_line(run):
    log = Log(run)
    log.record({"kind": "train", "step": 50, "loss": 0.5, "epoch": 1})
    log.record({"kind": "skipped", "step": 51, "reason": "Δ is not a number\u2028"})
    first, second = run.log.read_bytes().split(b"\n")[:-1]
    assert json.loads(first) == {"kind": "train", "step": 50, "loss": 0.5, "epoch": 1}
    assert json.loads(second) == {"kind": "skipped", "step": 51, "reason": "Δ is not a number\u2028"}
    assert len(list(run.records())) == 2


def test_what_is_no_number_stays_strict_json_that_float_reads(run):
    numbers = {"a": math.nan, "b": math.inf, "c": [-math.inf, np.float32("nan")]}
    Log(run).record(strict({"kind": "train", **numbers, "d": {"e": np.float32(0.5)}, "f": np.int64(3)}))
    record = json.loads(run.log.read_text(), parse_constant=refuse)
    assert record["f"] == 3
    assert record["d"] == {"e": 0.5}
    assert math.isnan(float(record["a"]))
    assert float(record["b"]) == math.inf
    assert float(record["c"][0]) == -math.inf


def test_only_numbers_and_words_are_recorded():
    with pytest.raises(TypeError, match="object"):
        strict(object())


def test_the_log_is_cut_back_to_the_checkpoint_and_goes_on_from_there(run):
    log = Log(run)
    assert log.size() == 0
    for step in (1, 2):
        log.record({"kind": "train", "step": step})
    size = log.size()
    for step in (3, 4):
        log.record({"kind": "train", "step": step})
    with open(run.log, "ab") as file:
        file.write(b'{"kind": "tr')  # torn by a kill

    log = Log(run)
    assert log.cut(size) is None
    log.record({"kind": "train", "step": 3})
    assert [record["step"] for record in run.records()] == [1, 2, 3]


def test_an_open_log_can_be_cut(run):
    log = Log(run)
    log.record({"kind": "train", "step": 1})
    size = log.size()
    log.record({"kind": "train", "step": 2})
    log.cut(size)
    log.record({"kind": "train", "step": 3})
    assert [record["step"] for record in run.records()] == [1, 3]


def test_a_log_that_is_too_short_is_reported_and_kept(run):
    log = Log(run)
    log.record({"kind": "train", "step": 1})
    with open(run.log, "ab") as file:
        file.write(b'{"kind": "tr')
    lost = log.cut(1000)
    log.record({"kind": "train", "step": 9})
    assert [record["step"] for record in run.records()] == [1, 9]
    assert "1,000" in lost
    assert "lost" in lost


def test_a_log_that_is_gone_is_reported(run):
    assert "0 bytes" in Log(run).cut(7)
    assert Log(run).cut(0) is None


def test_the_numbers_go_to_tensorboard_if_it_is_there(run, monkeypatch):
    """From its first record on it purges what an interrupted run wrote."""
    scalars, made = [], []

    class Writer:
        def __init__(self, folder, purge_step):
            made.append((folder, purge_step))

        def add_scalar(self, *scalar):
            scalars.append(scalar)

        def flush(self):
            pass

        def close(self):
            made.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=Writer))
    board = Board(run)
    board.record({"kind": "skipped", "step": 7, "loss": 1.0})
    board.record(strict({"kind": "train", "step": 8, "loss": 0.5, "epoch": 1, "gradient": math.nan}))
    board.record({"kind": "valid", "step": 9, "loss": 0.25, "best": True})
    board.close()
    assert made == [(run.directory / "tensorboard", 8), "closed"]
    assert scalars == [("loss/train", 0.5, 8), ("epoch/train", 1, 8), ("loss/valid", 0.25, 9)]


def test_without_tensorboard_nothing_is_said(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    Board(run).record({"kind": "train", "step": 8, "loss": 0.5})
    assert not (run.directory / "tensorboard").exists()
