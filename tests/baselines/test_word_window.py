"""The word-window model: equal to torch's convolution; what a state depends on, in each kind of model; its borders."""

import pytest
import torch
import torch.nn.functional as F

import sixfold
from sixfold import Cache
from sixfold.verify.contract import reading
from sixfold.verify.contract.subject import Subject
from tests.support.small import assert_close, moved_model, random_ids, refusal, seeded, small_model, small_sizes

WIDTH = 16
each_radius = pytest.mark.parametrize("radius", [1, 2, 3])


def kernel(layer, width):
    """W ∈ R^{H × wE} as a kernel of torch's: (H, E, w)."""
    return layer.matrix.weight.unflatten(1, (width, WIDTH)).transpose(1, 2)


def states_of(model, ids):
    return (model.decode if model.writes_text else model.encode)(ids)


# The equation ------------------------------------------------------------------------------------------------


@each_radius
@torch.no_grad()
def test_an_encoder_is_torchs_convolution_with_a_kernel_of_twice_the_radius_and_one(radius):
    model, ids = moved_model("encoder_only", (f"word_window:radius={radius}",)), random_ids(2, 7, seeded(1))
    x = model.roles["target"](ids).transpose(1, 2)
    for layer in model.stack.layers:
        convolution = torch.nn.Conv1d(WIDTH, WIDTH, 2 * radius + 1, padding=radius).double()
        convolution.weight.copy_(kernel(layer, 2 * radius + 1))
        convolution.bias.copy_(layer.matrix.bias)
        x = convolution(x).tanh()
    assert_close(model.encode(ids), x.transpose(1, 2), within=1e-12)


@each_radius
@torch.no_grad()
def test_a_language_model_has_only_the_left_window(radius):
    model, ids = moved_model("decoder_only", (f"word_window:radius={radius}",)), random_ids(2, 7, seeded(2))
    x = model.roles["target"](ids).transpose(1, 2)
    for layer in model.stack.layers:
        x = F.conv1d(F.pad(x, (radius, 0)), kernel(layer, radius + 1), layer.matrix.bias).tanh()
    assert_close(model.decode(ids), x.transpose(1, 2), within=1e-12)


@torch.no_grad()
def test_places_in_the_window_are_side_by_side_and_not_summed():
    """The state between two words changes when they change places."""
    model = small_model("encoder_only", ("word_window:radius=1",), encoder_layers=1)
    one, other = (model.encode(torch.tensor([row]))[0, 1] for row in ([5, 6, 7], [7, 6, 5]))
    assert (one - other).abs().max() > 0.01


# What a state depends on ---------------------------------------------------------------------------------------


@each_radius
@pytest.mark.parametrize("kind", ["encoder_only", "decoder_only"])
def test_layers_reach_a_multiple_of_the_radius(kind, radius):
    """l·c words at each side; in a language model at the left, and the word itself, but never the predicted one."""
    for layers in (1, 3):
        wishes, sizes = (f"word_window:radius={radius}",), {"encoder_layers": layers, "decoder_layers": layers}
        model, seen = small_model(kind, wishes, **sizes), []
        model.roles["target"].register_forward_hook(lambda part, ids, x, seen=seen: seen.append(x))
        states = states_of(model, random_ids(1, 23, seeded(3)))
        direction = torch.randn(WIDTH, dtype=torch.float64, generator=seeded(4))
        (gradient,) = torch.autograd.grad(states[0, 11] @ direction, seen)
        reach = layers * radius
        end = 11 if model.writes_text else 11 + reach
        assert gradient[0].ne(0).any(-1).nonzero()[:, 0].tolist() == list(range(11 - reach, end + 1))


@pytest.mark.parametrize("side", reading.SIDES)
def test_padding_does_not_change_the_class(side):
    subject = Subject("encoder_only", ("word_window",), small_sizes(classes=3))
    assert reading.class_in_a_batch(subject, side=side) is None


@torch.no_grad()
def test_while_decoding_a_layer_keeps_as_many_words_as_the_radius():
    model, cache, numbers = small_model("decoder_only", ("word_window:radius=3",)), Cache(rows=2), set()
    for word in random_ids(2, 8, seeded(5)).split(1, 1):
        model.decode(word, cache=cache)
        numbers.add(sum(state.numel() for states in cache._carried.values() for state in states))
    assert numbers == {2 * 2 * 3 * WIDTH}  # layers × rows × c
    assert not cache._growing
    assert not cache._shared


# In an encoder-decoder -----------------------------------------------------------------------------------------


@torch.no_grad()
def test_only_the_encoder_of_an_encoder_decoder_has_windows():
    plain, ours = small_model(), small_model(modifications=("word_window",))
    names = {name for name, _ in plain.named_parameters() if not name.startswith("encoder.")}
    assert names == {name for name, _ in ours.named_parameters() if not name.startswith("encoder.")}
    source, target = random_ids(2, 5, seeded(6)), random_ids(2, 4, seeded(7))
    memory = ours.encode(source)
    assert_close(ours.decode(target, memory), plain.decode(target, memory), within=1e-12)
    assert_close(memory.states[0], by_windows(ours, source), within=1e-12)


def by_windows(model, source):
    """Without positions, and without a norm at the end."""
    x = model.roles["source"](source).transpose(1, 2)
    for layer in model.encoder.layers:
        x = F.conv1d(x, kernel(layer, 5), layer.matrix.bias, padding=2).tanh()
    return x.transpose(1, 2)


# Parameters, options, company ------------------------------------------------------------------------------------


@each_radius
def test_the_number_of_parameters_is_that_of_the_formula(radius):
    sizes, wish = small_sizes(d_model=24, heads=3, encoder_layers=4, decoder_layers=3), f"word_window:radius={radius}"
    plain, ours = (sixfold.build(sizes, wishes, device="meta") for wishes in ([], [wish]))
    numbers = [sum(p.numel() for p in model.parameters()) for model in (plain, ours)]
    assert numbers[1] - numbers[0] == sixfold.spec.registry.find("word_window").adds(sizes, radius=radius)
    for kind, words in (("encoder_only", 2 * radius + 1), ("decoder_only", radius + 1)):
        layer = sixfold.build(sizes, [wish], kind, device="meta").stack.layers[0]
        assert sum(p.numel() for p in layer.parameters()) == words * 24**2 + 24


@pytest.mark.parametrize("option", ["radius=0", "radius=-1", "radius=101", "radius=1.5"])
def test_options_without_meaning_are_refused(option):
    with pytest.raises(ValueError, match="radius"):
        sixfold.build(small_sizes(), [f"word_window:{option}"], device="meta")


@pytest.mark.parametrize(
    ("kind", "other", "slot"),
    [
        *(("encoder_decoder", other, "position") for other in ("rotary", "shaw", "t5_bias", "learned_positions")),
        *(("encoder_only", other, "position") for other in ("rotary", "shaw", "t5_bias", "no_positions")),
        *(("decoder_only", other, "attention") for other in ("synthesizer_dense", "lightweight_convolution")),
        *(("encoder_only", *pair) for pair in (("swiglu", "feed_forward"), ("gelu", "activation"))),
        *(("decoder_only", *pair) for pair in (("rms_norm", "norm"), ("post_norm", "final"))),
        ("encoder_decoder", "evolved", "encoder_layer"),
    ],
)
def test_what_it_does_not_read_is_refused(kind, other, slot):
    for pair in (("word_window", other), (other, "word_window")):
        why = refusal(kind, *pair)
        assert why is not None, pair
        assert all(word in why for word in ("word_window", other, slot)), why
