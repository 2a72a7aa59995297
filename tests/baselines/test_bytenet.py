"""ByteNet: equal to torch's dilated convolutions; receptive field, unfolding, and where the decoder reads."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import sixfold
from sixfold import Cache
from sixfold.baselines.bytenet import Unfolding, at_positions
from sixfold.core.memory import Memory
from sixfold.models.count import count
from tests.support.small import (
    assert_close,
    moved_model,
    pad,
    random_ids,
    random_rows,
    refusal,
    seeded,
    small_model,
    small_sizes,
)
from tests.support.stage import call_at

WIDTH = 16


# The equations -----------------------------------------------------------------------------------------------


def convolved(block, x, causal):
    """The dilated convolution of a block, by torch: (B, L, inner) → (B, L, inner)."""
    inner, reach = x.shape[-1], (block.width - 1) * block.dilation
    kernel = block.convolution.weight.unflatten(1, (block.width, inner)).transpose(1, 2)  # (out, in, w)
    left = reach if causal else reach // 2
    padded = F.pad(x.transpose(1, 2), (left, reach - left))
    return F.conv1d(padded, kernel, block.convolution.bias, dilation=block.dilation).transpose(1, 2)


def by_torch(block, x, causal):
    """A block, written down once more."""
    first, second, third = block.norms
    y = block.narrow(first(x).relu())
    y = convolved(block, second(y).relu(), causal)
    return x + block.widen(third(y).relu())


@pytest.mark.parametrize("options", ["", ":dilations=3/1", ":width=5,dilations=2", ":width=1"])
@torch.no_grad()
def test_its_stacks_are_torchs_dilated_convolutions(options):
    wish = f"bytenet{options}"
    model = moved_model(modifications=(wish,))
    source, target = random_ids(2, 10, seeded(1)), random_ids(2, 9, seeded(2))
    memory = model.encode(source)
    x = F.pad(model.roles["source"](source), (0, 0, 0, 2))  # ⌈1.2 · 10⌉ = 12
    for block in model.encoder.layers:
        x = by_torch(block, x, causal=False)
    s = model.encoder.final(x)
    assert_close(memory.states[0], s, within=1e-12)
    x = model.decoder.join(torch.cat([model.roles["target"](target), s[:, :9]], -1))
    for block in model.decoder.layers:
        x = by_torch(block, x, causal=True)
    assert_close(model.decode(target, memory), model.decoder.final(x), within=1e-12)
    for kind in ("decoder_only", "encoder_only"):
        alone = moved_model(kind, (wish,))
        x = alone.roles["target"](target)
        for block in alone.stack.layers:
            x = by_torch(block, x, causal=alone.writes_text)
        states = (alone.decode if alone.writes_text else alone.encode)(target)
        assert_close(states, alone.stack.final(x), within=1e-12)


def test_dilations_begin_again_at_the_end_of_the_list():
    model = sixfold.build(small_sizes(encoder_layers=12, decoder_layers=3), ["bytenet"], device="meta")
    assert [block.dilation for block in model.encoder.layers] == [1, 2, 4, 8, 16, 1, 2, 4, 8, 16, 1, 2]
    assert [block.dilation for block in model.decoder.layers] == [1, 2, 4]


# What a state depends on -------------------------------------------------------------------------------------


def reached(model, length, at):
    """The words on which the state at `at` depends, by the gradient."""
    seen = []
    hook = model.roles["target"].register_forward_hook(lambda part, ids, x: seen.append(x))
    states = (model.decode if model.writes_text else model.encode)(random_ids(1, length, seeded(3)))
    hook.remove()
    direction = torch.randn(states.shape[-1], dtype=states.dtype, generator=seeded(4))
    (gradient,) = torch.autograd.grad(states[0, at] @ direction, seen)
    return gradient[0].ne(0).any(-1).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(("layers", "field"), [(1, 3), (3, 15), (5, 63), (6, 65)])
def test_the_receptive_field_is_that_of_the_arithmetic(layers, field):
    """1 + 2 Σ r tokens: before the state in a language model, around it in an encoder."""
    sizes = {"encoder_layers": layers, "decoder_layers": layers}
    model = small_model("decoder_only", ("bytenet", "gelu"), **sizes)  # a gradient of relu is 0 for half of its inputs
    assert reached(model, 80, 70) == list(range(71 - field, 71))
    model = small_model("encoder_only", ("bytenet", "gelu"), **sizes)
    assert reached(model, 80, 40) == list(range(40 - field // 2, 41 + field // 2))


def test_six_sets_of_the_papers_dilations_reach_373_tokens():
    model = small_model("decoder_only", ("bytenet", "gelu"), decoder_layers=30)
    assert reached(model, 400, 390) == list(range(391 - 373, 391))


# Unfolding ---------------------------------------------------------------------------------------------------


def test_the_unfolded_length_is_exact():
    """In floats, 1.1 · 10 is more than 11."""
    assert [Unfolding(1.2, 0).length(n) for n in (1, 4, 5, 6, 10, 15)] == [2, 5, 6, 8, 12, 18]
    assert [Unfolding(1.1, 0).length(n) for n in (10, 11, 20)] == [11, 13, 22]
    assert [Unfolding(1.0, 3).length(n) for n in (0, 1, 7)] == [3, 4, 10]
    assert Unfolding(1.2, 2).length(torch.tensor([1, 5])).tolist() == [4, 8]


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_each_row_is_unfolded_by_its_own_length(side):
    model, rows = moved_model(modifications=("bytenet:a=1.5,b=1",)), random_rows((6, 1, 3), seeded(5))
    memory = model.encode(pad(rows, side))
    assert memory.states[0].shape == (3, 10, WIDTH)
    assert memory.real.sum(1).tolist() == [10, 3, 6]
    for row, states, real in zip(rows, memory.states[0], memory.real, strict=True):
        alone = model.encode(row[None])
        assert alone.real is None
        assert real.tolist() == sorted(real.tolist(), reverse=True)  # at the left, wherever the padding was
        assert_close(states[real], alone.states[0][0], within=1e-12)


def read_at(positions, states, real, rows):
    call = replace(call_at(positions), memory=Memory((states,), real))
    return at_positions(states, call, rows)[..., 0].tolist()


def test_a_word_reads_the_state_at_its_position_and_zeros_beyond():
    states = torch.arange(1.0, 9).view(2, 4, 1)  # 1 2 3 4 and 5 6 7 8
    real = torch.tensor([[True] * 4, [True, True, False, False]])
    for rows, positions, expected in (
        (2, [[0, 1, 2]], [[1, 2, 3], [5, 6, 0]]),  # both rows stand at the same place
        (2, [[2, 3, 4, 5], [0, 1, 2, 9]], [[3, 4, 0, 0], [5, 6, 0, 0]]),  # a running batch
        (4, [[1], [3], [0], [1]], [[2], [4], [5], [6]]),  # two hypotheses of each sentence
    ):
        assert read_at(positions, states, real, rows) == expected
    assert read_at([[3, 4]], states, None, 2) == [[4, 0], [8, 0]]


@torch.no_grad()
def test_a_state_of_the_encoder_is_read_at_its_own_position_also_by_rows_that_stand_elsewhere():
    """The first word whose state changes with s_p is word p."""
    model, ids = moved_model(modifications=("bytenet",)), random_ids(2, 7, seeded(6))
    memory = model.encode(random_ids(2, 5, seeded(7)))  # 6 states
    cache, real = Cache(memory), torch.tensor([[True] * 4, [False, False, True, True]])
    for p in range(6):
        other = memory.states[0].clone()
        other[:, p] += 1
        changed = (model.decode(ids, memory) - model.decode(ids, memory._replace(states=(other,) * 2))).abs().amax(-1)
        assert [int(row.nonzero()[0]) for row in changed > 1e-6] == [p, p]
    model.decode(ids[:, :4], real=real, cache=cache)  # 4 words of the first row, 2 of the second
    assert_close(model.decode(ids[:, 4:], cache=cache)[0], model.decode(ids, memory)[0, 4:], within=1e-12)
    second = ids[1:, 2:]
    expected = model.decode(second, model.encode(random_ids(2, 5, seeded(7))[1:]))[0]
    cache = Cache(memory)
    got = [model.decode(ids[:, :4], real=real, cache=cache)[1, 2:], model.decode(ids[:, 4:], cache=cache)[1]]
    assert_close(torch.cat(got), expected, within=1e-12)


@torch.no_grad()
def test_the_decoder_goes_on_beyond_the_encoder():
    """There it reads zeros: its input is the word alone."""
    model, ids = moved_model(modifications=("bytenet",)), random_ids(1, 9, seeded(8))
    memory, inputs = model.encode(random_ids(1, 5, seeded(9))), []
    model.decoder.layers[0].register_forward_pre_hook(lambda part, args: inputs.append(args[0]))
    states = model.decode(ids, memory)
    words, join = model.roles["target"](ids), model.decoder.join
    assert_close(inputs[0][:, 6:], words[:, 6:] @ join.weight[:, :WIDTH].T + join.bias, within=1e-12)
    assert (inputs[0][:, :6] - words[:, :6] @ join.weight[:, :WIDTH].T - join.bias).abs().amin(1).max() > 1e-6
    assert states.isfinite().all()


# Cost --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_while_decoding_a_layer_keeps_twice_its_dilation_of_tokens():
    model = moved_model(modifications=("bytenet",), decoder_layers=6)
    cache, numbers = Cache(model.encode(random_ids(2, 5, seeded(10)))), set()
    for word in random_ids(2, 8, seeded(11)).split(1, 1):
        model.decode(word, cache=cache)
        numbers.add(sum(state.numel() for states in cache._carried.values() for state in states))
    assert numbers == {2 * 2 * (1 + 2 + 4 + 8 + 16 + 1) * WIDTH // 2}  # rows × 2 Σ r × inner channels
    assert not cache._growing
    assert not cache._shared


def test_operations_are_linear_in_the_length():
    model = sixfold.build(small_sizes(), ["bytenet"], device="meta")
    one, three = (count(model, source_length=n, target_length=n).operations for n in (50, 150))
    assert three == 3 * one


def test_the_number_of_parameters_is_that_of_the_formula():
    """At the paper's size, 30 blocks in each stack of width 2 · 800, matrices have 60 · 7 · 800² = 268.8 million."""
    sizes = sixfold.Sizes(vocab=9, d_model=1600, heads=1, encoder_layers=30, decoder_layers=30)
    model = sixfold.build(sizes, ["bytenet"], device="meta")
    blocks = [p.numel() for name, p in model.named_parameters() if ".layers." in name and p.dim() > 1]
    assert sum(blocks) == 60 * 7 * 800**2
    for options in ({}, {"width": 5}, {"a": 2.0, "b": 7, "dilations": (1, 3)}):
        sizes = small_sizes(d_model=24, heads=3, encoder_layers=4, decoder_layers=3)
        plain, ours = (sixfold.build(sizes, wishes, device="meta") for wishes in ([], [("bytenet", options)]))
        numbers = [sum(p.numel() for p in model.parameters()) for model in (plain, ours)]
        assert numbers[1] - numbers[0] == sixfold.spec.registry.find("bytenet").adds(sizes, **options)
        d, w = 24, options.get("width", 3)
        assert sum(p.numel() for p in ours.encoder.layers[0].parameters()) == d * d + w * d * d // 4 + 6 * d


# Options, company ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("width=2", "width must be an odd number such as 3, got 2"),
        ("width=101", "must be at most 99"),
        ("dilations=1/0", "dilations must be at least 1, such as 1/2/4/8/16, got '1/0'"),
        ("dilations=", "dilations"),
        ("a=0.9", "a must be at least 1"),
        ("a=nan", "a must be at least 1"),
        ("a=11", "must be at most 10"),
        ("b=-1", "b must be at least 0, got -1"),
    ],
)
def test_options_without_meaning_are_refused(option, why):
    with pytest.raises(ValueError, match=why):
        sixfold.build(small_sizes(), [f"bytenet:{option}"], device="meta")


def test_half_of_the_width_must_be_a_number():
    with pytest.raises(ValueError, match="bytenet: a block has half of d_model inside, and 15 is odd"):
        sixfold.build(small_sizes(d_model=15, heads=3), ["bytenet"], device="meta")


@torch.no_grad()
def test_an_activation_replaces_relu():
    model, ids = small_model("encoder_only", ("bytenet", "gelu")), random_ids(1, 5, seeded(12))
    plain = small_model("encoder_only", ("bytenet",))
    plain.load_state_dict(model.state_dict())
    assert (model.encode(ids) - plain.encode(ids)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("other", "slot"),
    [
        *((position, "position") for position in ("rotary", "shaw", "t5_bias", "learned_positions")),
        *((attention, "attention") for attention in ("synthesizer_dense", "lightweight_convolution")),
        *[("swiglu", "feed_forward"), ("rms_norm", "norm"), ("post_norm", "final"), ("rezero", "final")],
        *[("transparent_attention", "bridge"), ("cross_heads", "cross"), ("universal:steps=2", "stack")],
        *[("evolved", "encoder_layer"), ("funnel:blocks=2", "stack")],
    ],
)
def test_what_it_does_not_read_is_refused(other, slot):
    for pair in (("bytenet", other), (other, "bytenet")):
        why = refusal("encoder_decoder", *pair)
        assert why is not None, pair
        assert all(word in why for word in ("bytenet", other.partition(":")[0], slot)), why
