import pytest
import torch.distributed as dist


@pytest.fixture
def alone():
    """A group of one process, in which models can be cut into shards."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
