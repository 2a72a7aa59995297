import pytest
import torch.distributed as dist

from sixfold.runs.run import Run
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import train
from tests.support import begun_runs, tiny


@pytest.fixture
def alone():
    """A group of one process, in which models can be cut into shards."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def four_steps(tmp_path_factory):
    """A corpus, and a run of four steps on it."""
    folder = tiny.corpus(tmp_path_factory.mktemp("four_steps"))
    train(tiny.short(folder), folder / "run", display=Quiet())
    return folder


@pytest.fixture
def run(four_steps, tmp_path):
    """The same, with a corpus of its own. Modules that need another run have their own fixture of this name."""
    return Run(tiny.copied(four_steps, tmp_path) / "run")


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Runs to begin with, by name (tests/support/begun_runs.py). Modules may have another fixture of this name."""
    return begun_runs.made_in(tmp_path_factory.mktemp("made"))
