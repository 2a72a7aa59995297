"""What is cut up among processes, here among one: written, read, and made whole."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from sixfold.core import sharded_tensors
from sixfold.training import checkpoint, shards


def cut_up(rows):
    model = nn.Linear(2, rows)
    with torch.no_grad():
        model.weight.copy_(torch.arange(2.0 * rows).view(rows, 2))
    return fully_shard(model).state_dict()


def test_cut_up_and_made_whole_is_the_same(alone):
    weight, whole = cut_up(3)["weight"], torch.arange(6.0).view(3, 2)
    assert sharded_tensors.is_cut(weight)
    assert torch.equal(sharded_tensors.whole(weight), whole)
    assert torch.equal(sharded_tensors.whole(sharded_tensors.like(weight, whole)), whole)
    assert not sharded_tensors.is_cut(sharded_tensors.cut(torch.zeros(3), weight)), "another shape is not cut"


@pytest.mark.parametrize("cut_up_when_saved", [True, False])
@pytest.mark.parametrize("cut_up_when_read", [True, False])
def test_saved_in_one_form_and_read_in_another(alone, tmp_path, cut_up_when_saved, cut_up_when_read):
    weights = cut_up(3)
    whole = sharded_tensors.whole_tensors(weights)
    group = {**(weights if cut_up_when_saved else whole), "weight/step": torch.tensor(7.0)}
    checkpoint.write(tmp_path / "step-1", {"step": 1}, {"model": group})
    found = checkpoint.read(tmp_path / "step-1").tensors("model", weights if cut_up_when_read else None)
    assert {name for name, tensor in found.items() if sharded_tensors.is_cut(tensor)} == (
        {"weight", "bias"} if cut_up_when_read else set()
    )
    assert found.pop("weight/step") == 7
    assert all(torch.equal(sharded_tensors.whole(found[name]), tensor) for name, tensor in whole.items())


def test_a_disk_that_fails_is_an_error_of_the_disk(alone, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        shards.write(tmp_path / "file", cut_up(3))
