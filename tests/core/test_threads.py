"""Waiting threads sleep soon on a busy machine, unless the user has said how they wait."""

import os
import subprocess
import sys

import pytest

from sixfold.core.threads import SPIN_COUNT

UNSET = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
AT_TORCH = """
import os, sys
class Noticing:
    def find_spec(self, name, *rest):
        if name == "torch":
            print("at torch:", os.environ.get("GOMP_SPINCOUNT"), os.environ.get("OMP_WAIT_POLICY"))
            os._exit(0)
sys.meta_path.insert(0, Noticing())
"""


def environment_at_torch(start, **given):
    """GOMP_SPINCOUNT and OMP_WAIT_POLICY at the moment when torch is imported."""
    done = subprocess.run(
        [sys.executable, "-c", AT_TORCH + start], env={**UNSET, **given}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip().removeprefix("at torch: ").split()


COMMAND = "sys.argv = ['sixfold', 'train', '--out', 'x']; from sixfold.cli import main; main()"
DEMO = "import runpy; runpy.run_module('sixfold.demo', run_name='__main__')"


@pytest.mark.parametrize("start", [COMMAND, DEMO], ids=["command", "demo"])
def test_the_command_and_the_demo_set_it_before_torch_is_imported(start):
    assert environment_at_torch(start) == [str(SPIN_COUNT), "None"]


def test_what_the_user_has_set_stays():
    assert environment_at_torch(COMMAND, GOMP_SPINCOUNT="7") == ["7", "None"]
    assert environment_at_torch(COMMAND, OMP_WAIT_POLICY="active") == ["None", "active"]


def test_importing_the_library_sets_nothing():
    assert environment_at_torch("import sixfold; sixfold.load") == ["None", "None"]
