"""A user's part that draws by itself works, seeded, and is told how to declare a distribution."""

import math
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import sixfold
from sixfold import Spec, modification
from sixfold.core.drawing import generator_of
from sixfold.core.init import Normal, declare, linear, normal, parameter
from sixfold.spec import registry
from sixfold.transformer import Attention, FeedForward
from tests.support.small import small_sizes

INNER, OUTER = "stack.layers.0.feed_forward.inner.weight", "stack.layers.0.feed_forward.outer.weight"


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry.all_modifications()))


def weights_of(seed=1, kind="decoder_only", **slots):
    """Name → parameter of a model with these slots filled; and the warnings."""

    @modification()
    def mine(spec: Spec) -> Spec:
        return replace(spec, **slots)

    before = torch.get_rng_state()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = sixfold.build(small_sizes(), ["mine"] if slots else [], kind, seed=seed)
    assert torch.equal(torch.get_rng_state(), before)
    return dict(model.named_parameters()), [str(each.message) for each in seen]


class Plain(nn.Module):
    """A feed-forward network of torch's own matrices."""

    def __init__(self, spec, place):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x, call):
        return self.outer(torch.relu(self.inner(x)))


class Scaled(nn.Module):
    """A parameter that is computed of a draw."""

    def __init__(self, spec, place):
        super().__init__()
        self.inner = nn.ParameterDict({"weight": nn.Parameter(0.01 * torch.randn(32, 16))})


class DrawnAgain(FeedForward):
    """A part of ours, drawn in another way."""

    def __init__(self, spec, place):
        super().__init__(spec, place)
        nn.init.normal_(self.inner.weight, std=0.01)


class Shrunk(FeedForward):
    """A part of ours whose weights are made smaller."""

    def __init__(self, spec, place):
        super().__init__(spec, place)
        self.inner.weight.data /= 100


OWN = {"torch's matrices": Plain, "computed of a draw": Scaled, "drawn again": DrawnAgain, "made smaller": Shrunk}


@pytest.mark.parametrize("part", OWN.values(), ids=OWN)
def test_a_part_that_draws_is_seeded_and_gets_one_warning(part):
    weights, said = weights_of(feed_forward=part)
    (message,) = said
    assert message.startswith(INNER)
    assert "were drawn in a constructor without a declared distribution" in message
    assert "declare(self.output.weight, Normal(0.02))" in message
    same, _ = weights_of(feed_forward=part)
    assert all(torch.equal(p, same[name]) for name, p in weights.items())
    other, _ = weights_of(feed_forward=part, seed=2)
    assert not (weights[INNER] == other[INNER]).any()
    assert weights[INNER].std() < (0.2 if part is Plain else 0.02)  # torch's: 1/√(3·16) = 0.14; ours: 0.22


@pytest.mark.parametrize("part", OWN.values(), ids=OWN)
def test_all_other_weights_are_drawn_by_name(part):
    (weights, _), (plain, _) = weights_of(feed_forward=part), weights_of()
    names = [name for name in plain if ".feed_forward." not in name]
    assert len(names) > 10
    assert all(torch.equal(weights[name], plain[name]) for name in names)


def test_a_long_list_is_cut():
    _, (message,) = weights_of(feed_forward=Plain)
    first = "stack.layers.0.feed_forward."
    assert message.startswith(f"{first}inner.weight, {first}inner.bias, {first}outer.weight and 5 more were drawn")


def test_what_a_part_of_ours_declares_for_a_part_of_a_user_is_drawn_by_name():
    class Renamed(FeedForward):
        pass

    (weights, said), (plain, _) = weights_of(feed_forward=Renamed), weights_of()
    assert not said
    assert all(torch.equal(p, plain[name]) for name, p in weights.items())


def test_the_example_of_the_documentation_starts_as_it_says(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "writing-a-modification.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n((?:(?!```).)*class Bottleneck.*?)```", text, re.DOTALL)
    file = tmp_path / "my_parts.py"
    file.write_text(program, encoding="utf-8")
    sixfold.import_file(file)
    part = sixfold.build(small_sizes(d_model=512), ["bottleneck"], seed=1).encoder.layers[0].feed_forward
    assert part.outer.std().item() == pytest.approx(0.02, rel=0.05)
    assert 1.9 < part.inner.weight.abs().max().item() * math.sqrt(512) <= 2
    assert (part(torch.ones(1, 3, 512), None).shape, part.inner.bias.eq(0).all()) == ((1, 3, 512), True)


# Nothing to say ---------------------------------------------------------------------------------------------


class Declared(nn.Module):
    """As the documentation says."""

    def __init__(self, spec, place):
        super().__init__()
        self.inner = normal(nn.Linear(16, 32))
        self.outer = linear(32, 16)
        self.table = parameter((4, 5), Normal(0.3))


class Silenced(FeedForward):
    """A part of ours that begins at zero."""

    def __init__(self, spec, place):
        super().__init__(spec, place)
        nn.init.zeros_(self.outer.weight)


class Computed(FeedForward):
    """With a parameter that varies, and is not drawn."""

    def __init__(self, spec, place):
        super().__init__(spec, place)
        self.table = nn.Parameter(torch.arange(12.0).sin())


QUIET = {"declared": Declared, "zeros": Silenced, "computed": Computed}


@pytest.mark.parametrize("part", QUIET.values(), ids=QUIET)
def test_what_is_declared_constant_or_computed_is_not_warned_of(part):
    weights, said = weights_of(feed_forward=part)
    assert not said
    assert weights[INNER].std().item() == pytest.approx(0.25 if part is Declared else 0.22, rel=0.15)
    assert (weights[OUTER] == 0).all() == (part is Silenced)


def test_a_declared_weight_does_not_depend_on_what_others_draw():
    class Noisy(Attention):
        def __init__(self, spec, place):
            torch.rand(5 + (place.layer or 0))
            super().__init__(spec, place)

    (quiet, _), (noisy, said) = weights_of(feed_forward=Declared), weights_of(feed_forward=Declared, attention=Noisy)
    assert not said
    assert all(torch.equal(p, noisy[name]) for name, p in quiet.items())


def test_on_the_meta_device_there_is_nothing_to_say():
    @modification()
    def mine(spec: Spec) -> Spec:
        return replace(spec, feed_forward=Plain)

    sixfold.build(small_sizes(), ["mine"], "decoder_only", device="meta")  # a warning would be an error


# The slot init ----------------------------------------------------------------------------------------------


def test_init_has_the_last_word():
    def halve(model, spec):
        with torch.no_grad():
            model.tables[0].weight /= 2

    (weights, said), (plain, _) = weights_of(init=halve), weights_of()
    assert not said
    assert torch.equal(2 * weights["tables.0.weight"], plain["tables.0.weight"])
    assert all(torch.equal(p, weights[name]) for name, p in plain.items() if name != "tables.0.weight")


def test_what_init_declares_is_drawn_by_name():
    def like_bert(model, spec):
        for p in model.parameters():
            if p.dim() > 1:
                declare(p, Normal(0.02))

    weights, said = weights_of(init=like_bert)
    assert not said
    assert {round(p.std().item(), 2) for p in weights.values() if p.dim() > 1} == {0.02}
    for name in (INNER, "tables.0.weight"):
        expected = torch.empty(weights[name].shape).normal_(std=0.02, generator=generator_of(1, name))
        assert torch.equal(weights[name], expected)


def test_an_init_that_draws_is_seeded_and_gets_one_warning():
    def like_bert(model, spec):
        nn.init.normal_(model.tables[0].weight, std=0.02)

    weights, (message,) = weights_of(init=like_bert)
    assert message.startswith("weights in the slot 'init' were drawn without a declared distribution")
    assert math.isclose(weights["tables.0.weight"].std().item(), 0.02, rel_tol=0.1)
    same, _ = weights_of(init=like_bert)
    assert torch.equal(weights["tables.0.weight"], same["tables.0.weight"])
