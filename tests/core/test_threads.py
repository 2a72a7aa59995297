"""How waiting threads behave is chosen before torch is imported, and only beside other busy processes."""

import os
import subprocess
import sys

import pytest

from sixfold.core import threads


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of two cores, both for this process; returns a function that says how many threads run on it now."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that its absence is restored
        monkeypatch.delenv(name)
    monkeypatch.setattr(threads, "_RUNNING", tmp_path / "loadavg")
    monkeypatch.setattr(threads, "_BETWEEN", 0.0)
    monkeypatch.setattr(threads, "cores", lambda: 2)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 2)
    return lambda running: (tmp_path / "loadavg").write_text(f"0.52 0.58 0.59 {running}/467 12345\n")


@pytest.mark.parametrize(("running", "count"), [(1, None), (2, "1000"), (5, "1000")])
def test_threads_sleep_soon_beside_another_process_only(machine, running, count):
    machine(running)  # this thread is one of them
    assert threads.sleep_soon_if_busy() == (count is not None)
    assert os.environ.get("GOMP_SPINCOUNT") == count


def test_cores_that_are_free_are_enough(machine, monkeypatch):
    machine(5)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 64)
    assert not threads.sleep_soon_if_busy()


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_what_the_user_has_set_stays(machine, monkeypatch, name):
    machine(9)
    monkeypatch.setenv(name, "7")
    assert not threads.sleep_soon_if_busy()
    assert os.environ[name] == "7"


def test_it_is_too_late_once_torch_is_there(machine, monkeypatch):
    machine(9)
    monkeypatch.setitem(sys.modules, "torch", object())
    assert not threads.sleep_soon_if_busy()
    assert "GOMP_SPINCOUNT" not in os.environ


def test_a_system_that_does_not_tell_counts_as_idle(machine):
    assert not threads.sleep_soon_if_busy()


@pytest.mark.parametrize("module", ["sixfold", "sixfold.cli.app", "sixfold.cli.train", "sixfold.demo"])
def test_the_command_can_choose_because_torch_is_not_imported_yet(module):
    code = f"import sys, os, {module}; assert 'torch' not in sys.modules and 'GOMP_SPINCOUNT' not in os.environ"
    subprocess.run([sys.executable, "-c", code], check=True)
