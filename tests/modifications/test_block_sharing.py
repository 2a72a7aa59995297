"""Block sharing."""

import re
from dataclasses import replace

import pytest
import torch

from sixfold import Batch, Cache, Tap, load_model, save
from tests.support.small import assert_close, random_ids, seeded, small_model

SIZES = {"encoder_layers": 3, "decoder_layers": 4}
STACKS = ("both", "encoder", "decoder")


def shared_name(name, shared):
    """What a parameter of a plain model is called in the one that shares: encoder.layers.2.… → encoder.layer.…"""
    one = re.sub(r"\blayers\.\d+", "layer", name)
    return one if one in shared.state_dict() else name


def copied(shared, **rest):
    """A plain model whose layers are copies of the shared ones."""
    plain = small_model(shared.kind, **{**SIZES, **rest})
    plain.load_state_dict({name: shared.state_dict()[shared_name(name, shared)] for name in plain.state_dict()})
    return plain


def batch():
    source, target = random_ids(3, 5, seeded(1)), random_ids(3, 7, seeded(2))
    return Batch(source=source, inputs=target[:, :-1], targets=target[:, 1:])


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("stacks", STACKS)
def test_the_gradient_is_the_sum_of_the_gradients_of_unshared_copies(stacks, recompute):
    shared = small_model(modifications=(f"block_sharing:stacks={stacks}",), **SIZES)
    plain = copied(shared)
    losses = [model(batch(), recompute=recompute) for model in (shared, plain)]
    assert_close(losses[0].sum, losses[1].sum)
    for loss in losses:
        loss.sum.backward()
    expected = {name: torch.zeros_like(p) for name, p in shared.named_parameters()}
    for name, p in plain.named_parameters():
        expected[shared_name(name, shared)] += p.grad
    assert_close({name: p.grad for name, p in shared.named_parameters()}, expected)


@pytest.mark.parametrize("stacks", STACKS)
def test_only_the_stacks_that_were_named_share(stacks):
    model = small_model(modifications=(f"block_sharing:stacks={stacks}",), **SIZES)
    for name, stack, layers in (("encoder", model.encoder, 3), ("decoder", model.decoder, 4)):
        attentions = sum(key.endswith(".attention.qkv.weight") for key in stack.state_dict())
        assert attentions == (1 if stacks in ("both", name) else layers)
    assert len({p.data_ptr() for p in model.parameters()}) == len(model.state_dict())


@pytest.mark.parametrize(("kind", "fits"), [("decoder_only", "decoder"), ("encoder_only", "encoder")])
def test_a_model_with_one_stack(kind, fits):
    models = [small_model(kind, (f"block_sharing:stacks={stacks}",), **SIZES) for stacks in ("both", fits)]
    run = "decode" if kind == "decoder_only" else "encode"
    ids = random_ids(2, 5, seeded(3))
    assert torch.equal(getattr(models[0], run)(ids), getattr(models[1], run)(ids))
    assert_close(getattr(models[0], run)(ids), getattr(copied(models[0]), run)(ids))
    other = "encoder" if fits == "decoder" else "decoder"
    with pytest.raises(ValueError, match=f"stacks={other}, but the only stack of this model is its {fits}"):
        small_model(kind, (f"block_sharing:stacks={other}",))


@pytest.mark.parametrize("position", ["t5_bias:per_layer=true", "rotary", "shaw"])
@torch.no_grad()
def test_each_depth_has_its_own_name_and_its_own_cache(position):
    model, ids = small_model(modifications=("block_sharing", position), **SIZES), random_ids(2, 6, seeded(4))
    tap = Tap()
    memory = model.encode(ids, tap=tap)
    whole = model.decode(ids, memory, tap=tap)
    assert len(tap) == 3 + 2 * 4
    assert (tap["decoder.0.attention"] - tap["decoder.3.attention"]).abs().max() > 1e-6
    cache = Cache(memory)
    steps = torch.cat([model.decode(ids[:, i : i + 2], cache=cache) for i in range(0, 6, 2)], 1)
    assert_close(steps, whole)


@torch.no_grad()
def test_a_gate_acts_at_its_depth():
    model, ids = small_model(modifications=("block_sharing",), **SIZES), random_ids(2, 4, seeded(5))
    plain = copied(model)
    gates = {"decoder.2.cross": torch.tensor([[0.0, 1.0]], dtype=torch.float64)}
    got, expected = (m.decode(ids, m.encode(ids), gates=gates) for m in (model, plain))
    assert_close(got, expected)
    assert (got - model.decode(ids, model.encode(ids))).abs().max() > 1e-6


@torch.no_grad()
def test_saved_and_loaded_it_is_the_same(tmp_path):
    model, ids = small_model("decoder_only", ("block_sharing",), dtype=torch.float32), random_ids(2, 4, seeded(6))
    save(model, tmp_path / "model")
    assert torch.equal(load_model(tmp_path / "model").decode(ids), model.decode(ids))


@pytest.mark.parametrize("sharing", ["block_sharing", "universal"])
@pytest.mark.parametrize(
    ("other", "part", "layer"),
    [
        ("switch:experts=4,every=2", "feed_forward", 1),
        ("mixture_of_experts:experts=4,every=3", "feed_forward", 2),
        ("product_keys:keys=8,nearest=4", "feed_forward", 2),
        ("lightweight_convolution", "attention", 1),
    ],
)
def test_layers_that_differ_cannot_be_shared(sharing, other, part, layer):
    """The first layer would stand for all, and what only others have would never be built."""
    with pytest.raises(ValueError, match=f"{sharing} applies one layer repeatedly, but the {part} of layer {layer}"):
        small_model(modifications=(sharing, other), **SIZES)


@pytest.mark.parametrize("other", ["switch:experts=4,every=1", "lightweight_convolution:widths=5"])
def test_layers_that_are_alike_can(other):
    model = small_model(modifications=("block_sharing", other), **SIZES)
    assert hasattr(model.encoder.layer.feed_forward, "router") == other.startswith("switch")


def test_the_size_of_a_stack_stays_the_sizes_business():
    deep = small_model(modifications=("block_sharing",), decoder_layers=9)
    shallow = small_model(modifications=("block_sharing",), decoder_layers=1)
    assert deep.sizes == replace(shallow.sizes, decoder_layers=9)
    assert {n: p.shape for n, p in deep.named_parameters()} == {n: p.shape for n, p in shallow.named_parameters()}
