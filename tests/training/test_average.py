import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from sixfold.config.schema import Training
from sixfold.core.sharded_tensors import whole_tensors
from sixfold.runs.run import Run
from sixfold.training import checkpoint
from sixfold.training.average import make_average
from sixfold.training.processes import Processes
from tests.support.small import seeded, small_model


class Pair(nn.Module):
    """Two weights, and a counter that can't be averaged."""

    def __init__(self, *weights):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weights or (0.0, 0.0)))
        self.register_buffer("seen", torch.tensor([0]))

    def become(self, *weights):
        with torch.no_grad():
            self.weight.copy_(torch.tensor(weights))
        self.seen += 1
        return self


def average_of(wish, directory, keep=2):
    return make_average(Training(average=wish, keep=keep), Run(directory), Processes())


def save(run, step, model, average=None, grid=True, healthy=True):
    groups = {"model": model.state_dict(), **(average.saved(model) if average else {})}
    place = run / "training" / f"step-{step}"
    checkpoint.write(place, {"step": step, "grid": grid, "healthy": healthy}, groups)
    return checkpoint.read(place)


def test_without_a_wish_the_weights_are_as_they_are(tmp_path):
    average, model = average_of(None, tmp_path), Pair(1.0, 2.0)
    average.update(model)
    weights = average.weights(model.state_dict(), 1)
    assert {name: tensor.tolist() for name, tensor in weights.items()} == {"weight": [1.0, 2.0], "seen": [0]}
    assert average.saved(model) == {}
    assert average.needs([3, 2, 1]) == set()
    average.load(save(tmp_path, 1, model))


def test_exponential_by_hand(tmp_path):
    average, model = average_of(0.9, tmp_path), Pair()
    assert torch.equal(average.weights(model.state_dict(), 0)["weight"], model.weight), "nothing to average yet"
    expected = 1.0
    average.update(model.become(1.0, 1.0))
    for t in range(1, 200):
        decay = min(0.9, (1 + t) / (10 + t))  # 2/11, 3/12, … 0.9 from t = 80 on
        expected = decay * expected + (1 - decay) * float(t % 7)
        average.update(model.become(float(t % 7), 1.0))
        weights = average.weights(model.state_dict(), t + 1)
        assert weights["weight"].tolist() == pytest.approx([expected, 1.0], rel=1e-5)
    assert weights["seen"].item() == 200
    assert model.weight.tolist() == [199 % 7, 1.0], "what is trained stays as it is"


def test_a_constant_is_its_own_average(tmp_path):
    average, model = average_of(0.999, tmp_path), Pair(0.1, 1 / 3)
    for _ in range(50):
        average.update(model)
    assert torch.equal(average.weights(model.state_dict(), 50)["weight"], model.weight)


def shake(model, seed):
    generator = seeded(seed)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator)


@pytest.mark.parametrize("saved_after", [0, 1, 2, 30])
def test_exponential_is_resumed_bit_for_bit(saved_after, tmp_path):
    model, average = small_model(dtype=torch.float32), average_of(0.97, tmp_path)
    for seed in range(saved_after):
        shake(model, seed)
        average.update(model)
    saved = save(tmp_path, saved_after, model, average)

    other, resumed = small_model(seed=5, dtype=torch.float32), average_of(0.97, tmp_path)
    resumed.update(other)  # what it knows must go
    resumed.load(saved)
    checkpoint.load_weights(other, saved.tensors("model"))
    for seed in range(saved_after, saved_after + 4):
        here, there = average.weights(model.state_dict(), seed), resumed.weights(other.state_dict(), seed)
        assert all(torch.equal(here[name], there[name]) for name in model.state_dict())
        for one, mean in ((model, average), (other, resumed)):
            shake(one, seed)
            mean.update(one)
    assert resumed.saved(other)["average"].keys() == average.saved(model)["average"].keys()


def test_what_was_given_out_does_not_change_later(tmp_path):
    """A checkpoint may still be being written while training goes on; and the candidate is a copy."""
    average, model = average_of(0.9, tmp_path), Pair(1.0, 1.0)
    average.update(model)
    given = average.weights(model.state_dict(), 1)["weight"].clone()
    saved = save(tmp_path, 1, model, average)
    average.update(model.become(5.0, 5.0))
    assert torch.equal(saved.tensors("average")["weight"], given)


def test_the_last_three_checkpoints_of_the_grid(tmp_path):
    average = average_of(3, tmp_path)
    model = Pair()
    for step, weight in ((10, 1.0), (20, 2.0), (30, 4.0)):
        save(tmp_path, step, model.become(weight, 0.0))
    save(tmp_path, 33, model.become(100.0, 0.0), grid=False)  # somebody pressed Ctrl-C
    save(tmp_path, 50, model.become(100.0, 0.0))  # of a time that has not come
    current = model.become(9.0, 3.0).state_dict()
    assert average.weights(current, 40)["weight"].tolist() == [(9 + 4 + 2) / 3, 1.0]
    assert average.weights(current, 30)["weight"].tolist() == [(9 + 2 + 1) / 3, 1.0], "now counts once"
    assert average.weights(current, 20)["weight"].tolist() == [(9 + 1) / 2, 1.5]
    assert average.weights(current, 10)["weight"].tolist() == [9.0, 3.0]
    assert average.weights(current, 40)["seen"].item() == 6


@pytest.mark.parametrize("wish", [None, 3, 0.9])
def test_a_checkpoint_holds_what_was_handed_out(tmp_path, wish):
    """Also when those that the mean is of are gone."""
    average, model, candidate = average_of(wish, tmp_path), Pair(), Pair()
    for step in (10, 20):
        average.update(model.become(float(step), 1.0))
        candidate.load_state_dict(average.weights(model.state_dict(), step))
        groups = {"model": model.state_dict(), **average.saved(candidate)}
        checkpoint.write(tmp_path / "training" / f"step-{step}", {"step": step, "grid": True, "healthy": True}, groups)
    checkpoint.prune(tmp_path / "training", [20])
    found = average_of(wish, tmp_path).handed_out(checkpoint.read(tmp_path / "training" / "step-20"))
    assert {name: t.tolist() for name, t in found.items()} == {n: t.tolist() for n, t in candidate.state_dict().items()}
    assert (found["weight"][0] == 20.0) == (wish is None)


def test_bad_and_damaged_checkpoints_are_passed_over(tmp_path):
    average, model = average_of(2, tmp_path), Pair()
    save(tmp_path, 10, model.become(2.0, 0.0))
    save(tmp_path, 20, model.become(float("nan"), 0.0), healthy=False)
    current = model.become(4.0, 2.0).state_dict()
    assert average.weights(current, 30)["weight"].tolist() == [3.0, 1.0]
    place = tmp_path / "training" / "step-10"
    (place / "model.safetensors").write_bytes(b"cut")
    assert average.weights(current, 30)["weight"].tolist() == [4.0, 2.0]
    (place / "state.json").write_text("{")
    assert average.weights(current, 30)["weight"].tolist() == [4.0, 2.0]


@pytest.mark.parametrize(("keep", "needed"), [(1, {30, 20}), (2, {30, 20, 10}), (9, {30, 20, 10})])
def test_what_is_needed_is_what_each_checkpoint_to_resume_from_needs(keep, needed, tmp_path):
    """After 40, 30 and 20 come first; but 40 might be damaged, and then 30 asks for 20 and 10."""
    average, model = average_of(3, tmp_path, keep), Pair()
    for step in (10, 20, 30, 40):
        save(tmp_path, step, model)
    assert average.needs([40, 30, 20, 10]) == needed


@pytest.mark.parametrize("keep", [1, 2])
def test_resuming_finds_all_it_needs_after_pruning(keep, tmp_path):
    """With the checkpoints of a run that deletes old ones, averages are those of a run that keeps all."""
    few, every = tmp_path / "few", tmp_path / "every"
    model, found, expected = Pair(), [], []
    for step in range(10, 100, 10):
        model.become(float(step**2), 0.0)
        for directory, results in ((few, found), (every, expected)):
            results.append(average_of(3, directory, keep).weights(model.state_dict(), step)["weight"].tolist())
            save(directory, step, model)
        recent = [int(p.name.removeprefix("step-")) for p in checkpoint.checkpoints_in(few / "training")]
        checkpoint.prune(few / "training", {*recent[:keep], *average_of(3, few, keep).needs(recent)})
        found.append(average_of(3, few, keep).weights(model.state_dict(), step)["weight"].tolist())  # resumed here
        expected.append(expected[-1])
    assert found == expected
    assert len(checkpoint.checkpoints_in(few / "training")) == keep + 2


def test_exponential_of_shards_is_that_of_whole_tensors(alone, tmp_path):
    found = []
    for wrap in (lambda model: model, fully_shard):
        model, average = wrap(Pair()), average_of(0.9, tmp_path)
        for step in range(4):
            with torch.no_grad():
                model.weight.mul_(0.5).add_(step)
            average.update(model)
            if step == 1:
                average.load(save(tmp_path, 1, Pair(), average))
        found.append(average.weights(whole_tensors(model.state_dict()), 4)["weight"].tolist())
    assert found[0] == found[1]
