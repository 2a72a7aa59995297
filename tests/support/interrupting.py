"""Interrupt a run, go on with it, and compare it with one that was left alone."""

import os
import signal

from sixfold.runs.run import Run
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import resume, train
from sixfold.training.trainer import Trainer
from tests.support import tiny


def assert_it_ends_as_left_alone(config, folder, monkeypatch, after=13, **options):
    """Train twice, once with Ctrl-C after a step and a resumption: the same weights and the same log.

    `options` are those of `train`, such as start_from.
    """
    whole, broken = Run(folder / "whole"), Run(folder / "broken")
    train(config, whole.directory, display=Quiet(), **options)
    step = Trainer.step

    def interrupted(trainer):
        step(trainer)
        if trainer.progress.step == after:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "step", interrupted)
    assert train(config, broken.directory, display=Quiet(), **options).signal == signal.SIGINT
    monkeypatch.setattr(Trainer, "step", step)
    resume(broken.directory, display=Quiet())
    assert tiny.bytes_of(broken)["model.safetensors"] == tiny.bytes_of(whole)["model.safetensors"]
    assert tiny.log_without_times(broken) == tiny.log_without_times(whole)
