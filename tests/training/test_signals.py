"""SIGINT and SIGTERM in training: what is said, when, and what a second one costs."""

import hashlib
import os
import signal
import threading
import time

import pytest

from sixfold.runs.run import Run
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import resume, train
from sixfold.training.signals import Signals
from tests.support import tiny

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


class Sent(Quiet):
    """Keeps what is said; sends itself signals when a step is done."""

    def __init__(self, at=0, *numbers):
        super().__init__()
        self.said, self.at, self.numbers = [], at, numbers

    def say(self, text):
        self.said.append(text)

    def step(self, done):
        for number in self.numbers if done.step == self.at else ():
            signal.raise_signal(number)


@BOTH
def test_a_signal_is_answered_while_python_is_in_the_middle_of_an_instruction(number):
    """The hash takes one instruction, in which no handler of Python's is called."""
    told = []
    with Signals(lambda name, again: told.append((name, again, time.monotonic()))) as signals:
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)
        after = time.monotonic()
    ((name, again, when),) = told
    assert (name, again, signals.asked, signals.number) == (signal.Signals(number).name, False, True, number)
    assert when < after - 0.05


@BOTH
def test_a_second_one_is_told_before_it_ends_the_program(number):
    told = []

    def tell(name, again):
        time.sleep(0.1)
        told.append(again)

    def send_two():
        with Signals(tell):
            signal.raise_signal(number)
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        send_two()
    assert told == [False, True]


@BOTH
def test_two_within_one_instruction_end_the_program_too(number):
    """Python calls its handler once for both."""

    def hash_meanwhile():
        with Signals():
            for delay in (0.05, 0.1):
                threading.Timer(delay, os.kill, (os.getpid(), number)).start()
            hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        hash_meanwhile()


def test_one_of_each_kind_only_asks():
    with Signals() as signals:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert signals.asked


def test_all_is_as_before_when_it_is_closed():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with Signals():
            assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)


@BOTH
def test_a_run_says_that_it_saves_and_how_to_go_on(tmp_path, number):
    folder, display, name = tiny.corpus(tmp_path), Sent(6, number), signal.Signals(number).name
    outcome = train(tiny.config(folder), tmp_path / "run", display=display)
    assert outcome.signal == number
    (said,) = (text for text in display.said if text.startswith(name))
    assert "stops after this step and saves" in said
    assert f"a second {name} stops it at once, without saving" in said
    assert said.endswith(f"resume with: sixfold train --resume {tmp_path}/run")
    assert (tmp_path / "run" / "training" / "step-6").is_dir()


@BOTH
def test_a_second_one_says_what_is_lost_and_how_to_go_on(tmp_path, number):
    folder, display = tiny.corpus(tmp_path), Sent(7, number, number)
    config = tiny.config(folder, training__validate_every=100)
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        train(config, tmp_path / "run", display=display)
    assert display.said[-1] == (
        f"{signal.Signals(number).name} again: the run stops at step 7 and loses all steps since the checkpoint of "
        f"step 4; resume with: sixfold train --resume {tmp_path}/run"
    )
    assert resume(tmp_path / "run", display=Sent()).finished
    train(config, tmp_path / "alone", display=Quiet())
    assert tiny.bytes_of(Run(tmp_path / "run")) == tiny.bytes_of(Run(tmp_path / "alone"))


def test_ctrl_c_before_training_begins_leaves_with_its_exit_code(sixfold, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("sixfold.training.runner.train", interrupted)
    assert sixfold("train") == (130, "", "")
