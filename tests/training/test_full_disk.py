"""A disk that takes no more: the error says where it was, what is safe, and how to go on."""

import errno
import resource
import sys
from contextlib import contextmanager

import pytest
import torch

from sixfold.cli import main
from sixfold.disk.atomic import StagedFiles, new_directory, save_tensors, write_text
from sixfold.runs.run import Run
from sixfold.training import runner
from sixfold.training.observers.display import Quiet
from sixfold.training.observers.log import Log
from sixfold.training.runner import train
from sixfold.training.trainer import Trainer
from tests.support import tiny


@contextmanager
def no_file_larger_than(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_whatever_is_written_the_error_names_its_place(tmp_path):
    tensors = {"a": torch.zeros(5000)}

    def checkpoint():
        with new_directory(tmp_path / "step-1") as aside:
            save_tensors(tensors, aside / "model.safetensors")

    def model():
        with StagedFiles(tmp_path) as aside:
            aside.write("model.safetensors", lambda path: save_tensors(tensors, path))

    def text():
        write_text(tmp_path / "config.yaml", "x" * 20_000)

    places = {checkpoint: "step-1", model: "model.safetensors", text: "config.yaml"}
    for write, place in places.items():
        with no_file_larger_than(10_000), pytest.raises(OSError, match="too large") as error:
            write()
        assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(tmp_path / place))
    assert list(tmp_path.iterdir()) == []


def test_a_line_of_the_log_that_fits_in_part_is_an_error(tmp_path):
    run = Run(tmp_path)
    log = Log(run)
    log.record({"kind": "event", "step": 1})
    with no_file_larger_than(run.log.stat().st_size + 10), pytest.raises(OSError, match="too large") as error:
        log.record({"kind": "event", "step": 2})
    assert error.value.filename == str(run.log)
    assert [record["step"] for record in run.records()] == [1]


def test_a_run_says_what_is_safe_and_how_to_go_on(tmp_path, monkeypatch, capsys):
    run, step = Run(tiny.corpus(tmp_path) / "run"), Trainer.step

    def full(trainer):
        step(trainer)
        if trainer.progress.step == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    monkeypatch.setattr(Trainer, "step", full)
    monkeypatch.setattr(sys, "argv", ["sixfold", "train", "--data.train", "x", "--out", str(run.directory)])
    config = tiny.config(tmp_path)
    monkeypatch.setattr(runner, "train", lambda *_, **__: train(config, run.directory, display=Quiet()))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with no_file_larger_than(before[0]), pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    said = capsys.readouterr().err
    assert f"sixfold: File too large: {run.training / 'step-6'}\n" in said
    assert f"step 4 is saved: when the problem is fixed, sixfold train --resume {run.directory} continues" in said
