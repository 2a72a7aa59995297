"""The log: strict JSON, line by line, which can be cut back."""

import json
import math
import sys
import types

import numpy as np
import pytest

from sixfold.runs.run import Run
from sixfold.training.log import Log, strict
from tests.support.breaking_off import Listener


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


@pytest.fixture
def listener():
    return Listener()


def test_a_record_is_a_line_and_is_shown(run, listener):
    log = Log(run, listener)
    log.write("train", 50, loss=0.5, epoch=1)
    log.event(51, "skipped", reason="Δ is not a number\u2028")
    first, second = run.log.read_bytes().split(b"\n")[:-1]
    assert json.loads(first) == {"kind": "train", "step": 50, "loss": 0.5, "epoch": 1}
    assert json.loads(second) == {"kind": "skipped", "step": 51, "reason": "Δ is not a number\u2028"}
    assert list(run.records()) == listener.records


def test_what_is_no_number_stays_strict_json_that_float_reads(run, listener):
    Log(run, listener).write(
        "train", 1, a=math.nan, b=math.inf, c=[-math.inf, np.float32("nan")], d={"e": np.float32(0.5)}, f=np.int64(3)
    )
    record = json.loads(run.log.read_text(), parse_constant=refuse)
    assert record["f"] == 3
    assert record["d"] == {"e": 0.5}
    assert math.isnan(float(record["a"]))
    assert float(record["b"]) == math.inf
    assert float(record["c"][0]) == -math.inf


def test_only_numbers_and_words_are_recorded():
    with pytest.raises(TypeError, match="object"):
        strict(object())


def test_the_log_is_cut_back_to_the_checkpoint_and_goes_on_from_there(run, listener):
    log = Log(run, listener)
    assert log.size() == 0
    for step in (1, 2):
        log.write("train", step)
    size = log.size()
    for step in (3, 4):
        log.write("train", step)
    log.close()
    with open(run.log, "ab") as file:
        file.write(b'{"kind": "tr')  # torn by a kill

    log = Log(run, listener)
    log.cut(size)
    log.write("train", 3)
    assert [record["step"] for record in run.records()] == [1, 2, 3]
    assert listener.words == []


def test_an_open_log_can_be_cut(run, listener):
    log = Log(run, listener)
    log.write("train", 1)
    size = log.size()
    log.write("train", 2)
    log.cut(size)
    log.write("train", 3)
    assert [record["step"] for record in run.records()] == [1, 3]


def test_a_log_that_is_too_short_is_reported_and_kept(run, listener):
    log = Log(run, listener)
    log.write("train", 1)
    with open(run.log, "ab") as file:
        file.write(b'{"kind": "tr')
    log.cut(1000)
    log.write("train", 9)
    assert [record["step"] for record in run.records()] == [1, 9]
    assert "1,000" in listener.words[0]
    assert "lost" in listener.words[0]


def test_a_log_that_is_gone_is_reported(run, listener):
    Log(run, listener).cut(7)
    assert "0 bytes" in listener.words[0]
    Log(run, listener).cut(0)
    assert len(listener.words) == 1


def test_other_processes_write_nothing(run, listener):
    log = Log(run, listener, active=False)
    log.write("train", 1)
    log.event(1, "stopped")
    log.cut(0)
    assert log.size() == 0
    assert not run.log.exists()
    assert listener.records == []


def test_seconds_count_from_nought(run, listener):
    assert 0 <= Log(run, listener).seconds() < 5


def test_the_numbers_go_to_tensorboard_if_it_is_there(run, listener, monkeypatch):
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
    log = Log(run, listener)
    log.event(7, "skipped", loss=1.0)
    log.write("train", 8, loss=0.5, epoch=1, gradient=math.nan)
    log.write("valid", 9, loss=0.25, best=True)
    log.close()
    assert made == [(run.directory / "tensorboard", 8), "closed"]
    assert scalars == [("loss/train", 0.5, 8), ("epoch/train", 1, 8), ("loss/valid", 0.25, 9)]


def test_without_tensorboard_nothing_is_said(run, listener, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    Log(run, listener).write("train", 8, loss=0.5)
    assert listener.words == []
    assert not (run.directory / "tensorboard").exists()
