import math

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from sixfold.config.schema import Training
from sixfold.core.batch import Batch
from sixfold.core.sharded_tensors import whole_tensors
from sixfold.spec.spec import Group
from sixfold.training import checkpoint
from sixfold.training.optimizer import make_optimizers
from tests.support.small import MODIFICATIONS, VOCAB, seeded, small_model

OPTIMIZERS = ("adamw", "adafactor", "sgd", "muon")
MODELS = {"switch": ("switch:experts=4,every=2",), "product_keys": ("product_keys:keys=8,nearest=2",)}


def batch(seed):
    source, inputs, targets = (torch.randint(3, VOCAB, (2, 5), generator=seeded(3 * seed + i)) for i in range(3))
    return Batch(source=source, inputs=inputs, targets=targets)


def train(model, optimizers, seeds):
    for seed in seeds:
        torch.manual_seed(seed)  # for the jitter of experts
        losses = model(batch(seed))
        (losses.sum + losses.auxiliary).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_saved_and_loaded_goes_on_bit_for_bit(optimizer, name, tmp_path):
    training = Training(optimizer=optimizer, learning_rate=1e-2)
    model = small_model(modifications=MODELS[name], dtype=torch.float32).train()
    optimizers = make_optimizers(model, training)
    train(model, optimizers, range(3))
    remembered = checkpoint.optimizer_tensors(model, optimizers)
    files = {"model": model.state_dict(), "optimizer": remembered}
    checkpoint.write(tmp_path / "step-3", {"step": 3}, files)
    after_three = weights(model)
    train(model, optimizers, range(3, 6))

    other = small_model(modifications=MODELS[name], seed=9, dtype=torch.float32).train()
    others = make_optimizers(other, training)
    train(other, others, range(7, 9))  # what it remembers must go
    saved = checkpoint.read(tmp_path / "step-3")
    checkpoint.load_weights(other, saved.tensors("model"))
    checkpoint.load_optimizers(other, others, saved.tensors("optimizer"))
    assert same(weights(other), after_three)
    train(other, others, range(3, 6))
    assert same(weights(other), weights(model))
    assert not same(weights(model), after_three)
    assert same(checkpoint.optimizer_tensors(other, others), checkpoint.optimizer_tensors(model, optimizers))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_parameter_without_gradient_stays_and_learns_later(optimizer, tmp_path):
    training = Training(optimizer=optimizer, learning_rate=1e-2, weight_decay=0.5)
    model = small_model(dtype=torch.float32)
    late = [model.encoder.layers[0].attention.qkv.weight, model.encoder.layers[0].feed_forward.inner.bias]
    start = [p.detach().clone() for p in late]
    optimizers = make_optimizers(model, training)
    for p in late:
        p.requires_grad_(False)
    train(model, optimizers, range(2))
    assert all(torch.equal(p, s) for p, s in zip(late, start, strict=True))
    remembered = checkpoint.optimizer_tensors(model, optimizers)
    assert not any(name.startswith("encoder.layers.0.attention.qkv") for name in remembered)

    copy = small_model(dtype=torch.float32)
    others = make_optimizers(copy, training)
    checkpoint.load_weights(copy, weights(model))
    checkpoint.load_optimizers(copy, others, remembered)
    for p in late:
        p.requires_grad_(True)
    train(model, optimizers, range(2, 4))
    train(copy, others, range(2, 4))
    assert same(weights(copy), weights(model))
    assert not any(torch.equal(p, s) for p, s in zip(late, start, strict=True))


@pytest.mark.parametrize("modification", MODIFICATIONS)
def test_every_parameter_of_every_modification_is_in_one_group(modification):
    model = small_model(modifications=(modification,), dtype=torch.float32)
    for optimizer in OPTIMIZERS:
        groups = [g for o in make_optimizers(model, Training(optimizer=optimizer)) for g in o.param_groups]
        listed = [id(p) for group in groups for p in group["params"]]
        assert sorted(listed) == sorted(id(p) for p in model.parameters())
        assert all(group["params"] and group["factor"] > 0 for group in groups)


def test_matrices_decay_and_vectors_and_tables_do_not():
    model = small_model(dtype=torch.float32)
    (optimizer,) = make_optimizers(model, Training(weight_decay=0.3))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decay[id(model.encoder.layers[0].attention.qkv.weight)] == 0.3
    assert decay[id(model.encoder.layers[0].feed_forward.inner.bias)] == 0
    assert decay[id(model.tables[0].weight)] == 0
    assert all(group["fused"] and group["betas"] == (0.9, 0.98) for group in optimizer.param_groups)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_groups_carry_their_factor(optimizer):
    model = small_model(modifications=("weighted",), dtype=torch.float32)
    optimizers = make_optimizers(model, Training(optimizer=optimizer, learning_rate=0.1))
    factors = {group["factor"]: group["lr"] for o in optimizers for group in o.param_groups}
    assert factors == {1.0: 0.1, math.sqrt(2): pytest.approx(0.1 * math.sqrt(2))}  # two layers


TABLES = [
    "untied",
    "learned_positions",
    "t5_bias",
    "adaptive_input",
    "factorized_embedding",
    "product_keys:keys=8,nearest=2",
]


@pytest.mark.parametrize("modification", TABLES)
def test_muon_has_the_matrices_of_linear_layers_and_no_table(modification):
    model = small_model(modifications=(modification,), dtype=torch.float32)
    muon, adamw = make_optimizers(model, Training(optimizer="muon"))
    assert [type(o).__name__ for o in (muon, adamw)] == ["Muon", "AdamW"]
    mine = {id(p) for group in muon.param_groups for p in group["params"]}
    names = {name for name, p in model.named_parameters() if id(p) in mine}
    assert "encoder.layers.0.feed_forward.inner.weight" in names
    assert "decoder.layers.1.attention.qkv.weight" in names
    assert not any(word in name for name in names for word in ("table", "values", "sub_keys"))


def test_muon_takes_steps_of_the_size_of_adamw():
    """So that one learning rate serves both: in the root mean square 0.2 of it, up to Muon's approximation."""
    model = small_model(dtype=torch.float32, d_model=64, d_ff=256)
    weight = model.encoder.layers[0].feed_forward.inner.weight
    weight.grad = torch.randn(weight.shape, generator=seeded(1))
    before = weight.detach().clone()
    for optimizer in make_optimizers(model, Training(optimizer="muon", learning_rate=1.0, weight_decay=0.0)):
        optimizer.step()
    assert (weight.detach() - before).square().mean().sqrt() == pytest.approx(0.2, rel=0.2)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
def test_shards_are_trained_like_whole_tensors(optimizer, alone):
    whole, shards = small_model(dtype=torch.float32), fully_shard(small_model(dtype=torch.float32))
    for model in (whole, shards):
        train(model, make_optimizers(model, Training(optimizer=optimizer, learning_rate=1e-2)), range(3))
    found = whole_tensors(shards.state_dict())
    assert all(torch.allclose(found[name], tensor, atol=1e-4) for name, tensor in weights(whole).items())


def test_adafactor_says_that_it_does_not_work_on_shards(alone):
    with pytest.raises(ValueError, match="Adafactor does not work on shards"):
        make_optimizers(fully_shard(small_model(dtype=torch.float32)), Training(optimizer="adafactor"))


def test_a_forgotten_parameter_is_named():
    model = small_model()
    model._groups = lambda model: [Group("some", list(model.tables.parameters()), decay=False)]
    with pytest.raises(ValueError, match=r"encoder\.\S+ is in 0 of the model's groups"):
        make_optimizers(model, Training())
