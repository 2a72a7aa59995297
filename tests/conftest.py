import sys

import pytest
import torch

from sixfold.cli import main

torch.set_num_threads(1)  # tests run side by side, and one thread adds up in one order


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
