import gc
import sys

import pytest
import torch

from sixfold.cli import main
from tests.support import covering


def pytest_addoption(parser):
    parser.addoption(
        covering.OPTION,
        action="store_true",
        help="every form of every part in every test, instead of one (see tests/support/covering.py)",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "covering: a test of parts in a covering design (tests/support/covering.py)")


def pytest_collection_finish():
    """What torch, sympy and numba hold stays to the end: a collection of garbage need not look through it each time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup():
    """Tests run side by side, and one thread adds up in one order. CTranslate2 changes the number for torch, too."""
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def pytest_generate_tests(metafunc):
    covering.parametrize(metafunc)


@pytest.fixture
def sixfold(monkeypatch, capsys, tmp_path):
    """A verb of the command line, in an empty directory. → exit code, standard output, standard error"""
    monkeypatch.chdir(tmp_path)

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["sixfold", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, *capsys.readouterr()

    return command
