"""Branches, against a loop; and their weights on the simplex."""

import math

import pytest
import torch

import sixfold
from sixfold import Batch
from sixfold.modifications.weighted import Branches, onto_simplex
from tests.support.small import assert_close, random_ids, seeded, small_model, small_sizes
from tests.support.stage import call_at

FORMS = ("weighted", "weighted_study")
SIZES = {"heads": 4, "d_ff": 24}


def branches_of(model):
    return [part for part in model.modules() if isinstance(part, Branches)]


def normal(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def perturbed(part):
    with torch.no_grad():
        part.inner_bias.copy_(normal(*part.inner_bias.shape, seed=1))
        part.outer_bias.copy_(normal(*part.outer_bias.shape, seed=2))
    return part


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_each_head_goes_through_its_network_alone(form):
    part = perturbed(branches_of(small_model("encoder_only", (form,), **SIZES))[0])
    x, call = normal(2, 5, 16, seed=3), call_at(torch.arange(5)[None])
    width = 24 if "study" in form else 6
    heads = part.attention(x, call).view(2, 5, 4, 4)
    expected = torch.zeros(2, 5, 16, dtype=torch.float64)
    for i in range(4):
        network = 0 if "study" in form else i
        branch = part.kappa[i] * (heads[:, :, i] @ part.output.weight[:, 4 * i : 4 * i + 4].T)
        b1 = part.inner_bias[network * width : (network + 1) * width]
        b2 = part.outer_bias[network * 16 : (network + 1) * 16]
        hidden = torch.relu(branch @ part.inner[network] + b1)
        expected += part.alpha[i] * (hidden @ part.outer[network] + b2)
    assert_close(part(x, call), expected, within=1e-12)


@torch.no_grad()
def test_with_a_linear_network_for_all_and_even_weights_branches_are_one_attention():
    """Σ_i α κ FFN(head_i W_O⁽ⁱ⁾) = α κ FFN(Σ_i head_i W_O⁽ⁱ⁾) if FFN is linear."""
    part = branches_of(small_model("encoder_only", ("weighted_study",), **SIZES))[0]
    part.activation = lambda h: h
    part.alpha.fill_(1 / 4)
    part.kappa.fill_(1 / 4)
    x, call = normal(2, 5, 16, seed=4), call_at(torch.arange(5)[None])
    whole = part.output(part.attention(x, call))
    assert_close(part(x, call), whole @ part.inner[0] @ part.outer[0] / 16, within=1e-12)


def test_what_is_branched():
    def kinds(layer):
        return {name: isinstance(getattr(layer, name, None), Branches) for name in ("attention", "cross")}

    original, study = (small_model(modifications=(form,)) for form in FORMS)
    for model in (original, study):
        assert kinds(model.encoder.layers[0]) == {"attention": True, "cross": False}
        assert not hasattr(model.decoder.layers[0], "feed_forward")
    assert kinds(original.decoder.layers[0]) == {"attention": False, "cross": True}
    assert kinds(study.decoder.layers[0]) == {"attention": True, "cross": True}
    assert original.attentions == small_model().attentions


@pytest.mark.parametrize(
    ("z", "expected"),
    [([1.0, 3.0], [0.25, 0.75]), ([-1.0, 2.0], [0.0, 1.0]), ([-1.0, -2.0], [0.5, 0.5]), ([0.2, 0.8], [0.2, 0.8])],
)
def test_onto_the_simplex(z, expected):
    assert_close(onto_simplex(torch.tensor(z)).tolist(), expected, within=1e-7)


def on_simplex(part):
    return all(z.min() >= 0 and abs(z.sum() - 1) < 1e-6 for z in (part.kappa, part.alpha))


@pytest.mark.parametrize("form", FORMS)
def test_weights_start_and_stay_on_the_simplex_and_rest_at_the_end(form):
    model, ids = small_model(modifications=(form,), **SIZES), random_ids(2, 5, seeded(5))
    assert all(on_simplex(part) for part in branches_of(model))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before = None
    for step in range(10):
        model(Batch(source=ids, inputs=ids, targets=ids)).sum.backward()
        optimizer.step()
        model.after_step(step, 10)
        assert all(on_simplex(part) for part in branches_of(model))
        after = [z.detach().clone() for part in branches_of(model) for z in (part.kappa, part.alpha)]
        if before is not None:
            frozen = step >= 8  # a fifth of ten steps
            assert all(torch.equal(a, b) == frozen for a, b in zip(after, before, strict=True))
        before = after


def test_a_resumed_run_is_frozen_where_the_other_was(tmp_path):
    model = small_model(modifications=("weighted:freeze=1",))
    model.after_step(8, 10)
    sixfold.save(model, tmp_path)
    resumed = sixfold.load_model(tmp_path)
    for each in (model, resumed):
        with torch.no_grad():
            branches_of(each)[0].kappa.add_(0.3)
        each.after_step(9, 10)
    assert torch.equal(branches_of(model)[0].kappa, branches_of(resumed)[0].kappa)
    assert on_simplex(branches_of(model)[0])


def test_branch_weights_learn_faster():
    model = sixfold.build(small_sizes(encoder_layers=4), ["weighted"])
    *others, mine = model.groups()
    assert mine.rate == math.sqrt(4)
    assert len(mine.parameters) == 2 * (4 + 2)
    everything = [id(p) for group in (*others, mine) for p in group.parameters]
    assert sorted(everything) == sorted(id(p) for p in model.parameters())


def test_a_negative_freeze_is_refused():
    with pytest.raises(ValueError, match="freeze must be at least 0 steps, got -1"):
        small_model(modifications=("weighted:freeze=-1",))
