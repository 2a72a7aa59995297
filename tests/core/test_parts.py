"""What parts declare of themselves reaches those whom it concerns; a plain nn.Module declares nothing, and works."""

import pytest
import torch
from torch import nn

import sixfold
from sixfold import ModelPart, Tap
from sixfold.core.parts import declared
from sixfold.decoding.alignment import watched_layer
from sixfold.spec import registry
from sixfold.transformer import Attention, merge_heads, split_heads
from tests.support.own_parts import fills
from tests.support.small import assert_close, random_ids, seeded, small_model


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry.all_modifications()))


class Plain(nn.Module):
    """The mean of all tokens so far, by a module that declares nothing."""

    def __init__(self, spec, place):
        super().__init__()
        self.place, self.heads = place, 2

    def forward(self, x, call):
        (all_so_far,) = call.grow(self.place, x)
        return all_so_far.mean(1, keepdim=True).expand_as(x)


class Declaring(ModelPart):
    """The same with heads that can be gated, and weights that can be seen."""

    map = "slots"

    def __init__(self, spec, place):
        super().__init__()
        self.place, self.heads, self.limit = place, 2, 7

    def forward(self, x, call):
        (heads,) = split_heads(x.mean(1, keepdim=True).expand_as(x), self.heads, 1)
        call.show(self.place, weights=x.new_full((*heads.shape[:3], x.shape[1]), 1 / x.shape[1]))
        return merge_heads(call.gate(self.place, heads))


def test_a_plain_module_fills_a_slot_and_is_not_watched():
    model = small_model("encoder_only", (fills(attention=Plain), "no_positions"))
    assert model.encode(random_ids(2, 4, seeded(1))).shape == (2, 4, 16)
    assert model.attentions == model.maps == model.limits == {}
    with pytest.raises(ValueError, match=r"no heads 'only\.0\.attention' to gate"):
        model.encode(random_ids(2, 4, seeded(1)), gates={"only.0.attention": torch.ones(1, 2)})


def test_what_a_part_declares_is_known_of_the_model():
    model, ids = small_model("encoder_only", (fills(attention=Declaring), "no_positions")), random_ids(2, 4, seeded(1))
    names = ["only.0.attention", "only.1.attention"]
    assert model.attentions == dict.fromkeys(names, 2)
    assert model.maps == dict.fromkeys(names, "slots")
    assert model.limits == {"only": 7}
    model.encode(ids, tap=(tap := Tap()))
    assert list(tap) == names
    closed = model.encode(ids, gates={name: torch.zeros(1, 2, dtype=torch.float64) for name in names})
    assert (closed - model.encode(ids)).abs().max() > 1e-3
    with pytest.raises(ValueError, match="8 positions, but this model has learned only 7"):
        model.encode(random_ids(2, 8, seeded(1)))


@pytest.mark.parametrize(
    ("wishes", "kinds"),
    [
        ((), {"encoder.0.attention": "softmax", "decoder.0.attention": "softmax", "decoder.0.cross": "softmax"}),
        (
            ("lightweight_convolution",),
            {"encoder.0.attention": "kernel", "decoder.0.attention": "kernel", "decoder.0.cross": "softmax"},
        ),
        (
            ("synthesizer_dense",),
            {"encoder.0.attention": "softmax", "decoder.0.attention": "softmax", "decoder.0.cross": "softmax"},
        ),
    ],
)
def test_maps_by_their_kind(wishes, kinds):
    model = small_model(modifications=wishes, encoder_layers=1, decoder_layers=1)
    assert model.maps == kinds
    assert model.attentions.keys() == kinds.keys()


def test_alignments_are_read_from_a_softmax_only():
    assert watched_layer(small_model()) == "decoder.0.cross"
    assert watched_layer(small_model(modifications=(fills(cross=Declaring),))) is None


@pytest.mark.parametrize(
    ("wishes", "numbers"),
    [
        ((), [2, 2]),
        (("block_sharing",), [1, 1]),
        (("universal:steps=3",), [1, 1]),
        (("funnel:blocks=2",), [2, 2]),
    ],
)
def test_a_stack_says_which_modules_are_dealt_out_to_processes(wishes, numbers):
    model = small_model(modifications=wishes)
    assert [len(list(stack.units())) for stack in (model.encoder, model.decoder)] == numbers
    assert not list(declared(model.tables).units())


@pytest.mark.parametrize(
    ("name", "value", "placed"),
    [
        ("batch_dependent", True, False),
        ("keeps_length", False, False),
        ("position_places", ("bias",), False),
        ("not_exported", "why", False),
        ("limit", 3, True),
    ],
)
def test_a_declaration_that_nobody_would_hear_is_an_error_that_says_what_to_do(name, value, placed):
    """As parts were written before there was ModelPart."""

    class Old(nn.Module):
        def __init__(self, spec, place):
            super().__init__()
            if placed:
                self.place = place
            setattr(self, name, value)

        def forward(self, x, call):
            return x

    with pytest.raises(ValueError, match=f"Old declares '{name}', .* derive it from that, not from nn.Module"):
        small_model(modifications=(fills(feed_forward=Old),))


def test_one_that_derives_from_attention_declares_what_attention_does():
    class Mine(Attention):
        pass

    plain, mine = small_model(), small_model(modifications=(fills(attention=Mine),))
    assert (plain.attentions, plain.maps) == (mine.attentions, mine.maps)
    ids = random_ids(2, 4, seeded(2))
    assert_close(plain.encode(ids).states[-1], mine.encode(ids).states[-1])


def test_a_forward_that_comes_from_a_mixin_inherits_no_declaration():
    """It would be handed a position that it never calls, and be asked for weights that it never shows."""

    class Forward(nn.Module):
        def forward(self, x, call):
            return self.output(x)

    class Mixed(Forward, Attention):
        pass

    class Deeper(Mixed):
        pass

    class Stated(Forward, Attention):
        position_places = ("rotate",)
        map = "kernel"

    for mixed in (Mixed, Deeper):
        assert (mixed.position_places, mixed.map) == ((), "none")
        with pytest.raises(ValueError, match=r"'rotary' acts by 'rotate', but the attention of .* never calls that"):
            small_model("encoder_only", (fills(attention=mixed), "rotary"))
    assert (Stated.position_places, Stated.map) == (("rotate",), "kernel")
    assert Attention.position_places == ("rotate", "bias", "values")


def test_a_bridge_that_needs_one_length_and_a_stack_that_shortens_are_refused():
    with pytest.raises(ValueError, match=r"'transparent_attention' adds .* 'funnel_study' shortens"):
        small_model(modifications=("transparent_attention", "funnel_study:blocks=2"))


def test_the_public_name():
    assert sixfold.ModelPart is ModelPart
