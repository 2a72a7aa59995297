"""Positions, each against its formula written as a loop."""

import math
from dataclasses import replace

import pytest
import torch

from sixfold import Cache, Spec
from sixfold.core.inputs import begin
from sixfold.core.place import Place
from sixfold.modifications.t5_bias import bucket
from sixfold.transformer import Sinusoid
from tests.support.small import POSITIONS, RELATIVE, assert_close, random_ids, seeded, small_model, small_sizes
from tests.support.stage import call_at

STACK = Place("only", layers=2, causal=False)
LAYER = STACK.at(0).named("attention")
H, K = 2, 8


def normal(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def part_of(modification, place=LAYER, causal=False):
    """A position part in float64, as it is built in a model."""
    model = small_model("decoder_only" if causal else "encoder_only", [modification])
    return model.input.position if place.layer is None else model.stack.layers[0].attention.position


# Sinusoids -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [16, 6, 7])
def test_a_sinusoid_is_its_closed_form(width):
    positions = [[0, 1, 2, 500], [3, 3, 0, 9999]]
    spec = Spec(sizes=small_sizes(d_model=width, heads=1))
    waves = Sinusoid(spec, STACK).embed(torch.zeros(2, 4, width, dtype=torch.float64), call_at(positions))
    for b, row in enumerate(positions):
        for i, t in enumerate(row):
            angles = [t / 10000 ** (2 * (column // 2) / width) for column in range(width)]
            expected = [math.cos(a) if column % 2 else math.sin(a) for column, a in enumerate(angles)]
            assert_close(waves[b, i].tolist(), expected, within=1e-10)


def test_a_sinusoid_is_added_and_has_half_the_width_as_its_square():
    x, call = normal(1, 100, 16), call_at(torch.arange(100)[None])
    waves = Sinusoid(Spec(sizes=small_sizes()), STACK).embed(x, call) - x
    assert_close(waves.square().sum(-1), torch.full((1, 100), 8.0, dtype=torch.float64), within=1e-12)


def test_a_sinusoid_counts_beyond_half_precision():
    x = torch.zeros(1, 2, 16, dtype=torch.bfloat16)
    near, next_one = Sinusoid(Spec(sizes=small_sizes()), STACK).embed(x, call_at([[2000, 2001]]))[0]
    assert (near - next_one).abs().max() > 0.1


# Rotary ----------------------------------------------------------------------------------------------


def rotated(heads, positions):
    part = part_of("rotary")
    call = call_at(positions)
    return part.rotate(heads, replace(call, position=part.prepare(heads, call)))


def test_rotary_turns_each_pair_by_its_angle():
    heads, positions = normal(2, H, 3, K), torch.tensor([[0, 1, 7], [5, 5, 300]])
    pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)).contiguous())
    got = torch.view_as_complex(rotated(heads, positions).unflatten(-1, (-1, 2)).contiguous())
    for b, i, pair in [(b, i, pair) for b in range(2) for i in range(3) for pair in range(K // 2)]:
        angle = positions[b, i].item() * 10000 ** (-2 * pair / K)
        turn = complex(math.cos(angle), math.sin(angle))
        assert_close(got[b, :, i, pair], pairs[b, :, i, pair] * turn, within=1e-12)


def test_rotary_scores_do_not_mind_a_shift_of_all_positions():
    q, k, positions = normal(2, H, 5, K), normal(2, H, 5, K, seed=1), torch.tensor([[0, 1, 2, 3, 9], [4, 4, 0, 8, 2]])
    scores = rotated(q, positions) @ rotated(k, positions).mT
    assert_close(rotated(q, positions + 1000) @ rotated(k, positions + 1000).mT, scores)
    assert (rotated(q, positions + 1) @ rotated(k, positions).mT - scores).abs().max() > 1e-3


def test_rotary_scores_of_the_same_words_depend_on_the_distance_alone():
    q, k = (normal(1, H, 1, K, seed=seed).expand(-1, -1, 6, -1) for seed in range(2))
    scores = (rotated(q, torch.arange(6)[None]) @ rotated(k, torch.arange(6)[None]).mT)[0]
    for distance in range(-5, 6):
        same = scores.diagonal(distance, -2, -1)
        assert_close(same, same[:, :1].expand_as(same), within=1e-12)
    assert scores[:, 0].diff().abs().min() > 1e-6


def test_rotary_keeps_norms_and_leaves_the_first_word_as_it_is():
    heads = normal(1, H, 4, K)
    turned = rotated(heads, torch.tensor([[0, 1, 10, 100]]))
    assert torch.equal(turned[:, :, 0], heads[:, :, 0])
    assert (turned - heads)[:, :, 1:].abs().amax(-1).min() > 1e-3
    assert_close(turned.norm(dim=-1), heads.norm(dim=-1), within=1e-12)


def test_rotary_needs_pairs():
    with pytest.raises(ValueError, match="d_head must be even, got 5"):
        small_model("decoder_only", ["rotary"], d_head=5)


# Shaw ------------------------------------------------------------------------------------------------

QUERIES, KEYS = torch.tensor([[3, 4, 5], [0, 1, 2]]), torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 7, 8, 9]])


def shaw_row(table, head, distance, farthest=2):
    """a[c(j − i)] as this head has it."""
    return table[head % table.shape[0], max(-farthest, min(farthest, distance)) + farthest]


@pytest.mark.parametrize("per_head", ["true", "false"])
@torch.no_grad()
def test_shaw_is_a_loop_over_queries_and_keys(per_head):
    part = part_of(f"shaw:distance=2,per_head={per_head}")
    assert part.keys.shape == part.to_values.shape == (H if per_head == "true" else 1, 5, K)
    q, weights = normal(2, H, 3, K), normal(2, H, 3, 6).softmax(-1)
    call = call_at(QUERIES, KEYS)
    call = replace(call, position=part.prepare(q, call))
    bias, values = part.bias(q, call), part.values(weights, call)
    for b, h, i in [(b, h, i) for b in range(2) for h in range(H) for i in range(3)]:
        distances = [int(KEYS[b, j] - QUERIES[b, i]) for j in range(6)]
        added = torch.zeros(K, dtype=torch.float64)
        for j, distance in enumerate(distances):
            score = q[b, h, i] @ shaw_row(part.keys, h, distance) / math.sqrt(K)
            assert_close(bias[b, h, i, j], score, within=1e-12)
            added += weights[b, h, i, j] * shaw_row(part.to_values, h, distance)
        assert_close(values[b, h, i], added, within=1e-12)


# T5 --------------------------------------------------------------------------------------------------

BOTH_WAYS = {0: 0, -1: 1, -7: 7, -8: 8, -11: 8, -12: 9, -16: 10, -32: 12, -64: 14, -91: 15, -500: 15}
BOTH_WAYS |= {1: 17, 7: 23, 8: 24, 128: 31}
BACK = {0: 0, 5: 0, -1: 1, -15: 15, -16: 16, -20: 17, -32: 21, -64: 26, -113: 31, -1000: 31}


@pytest.mark.parametrize(("causal", "expected"), [(False, BOTH_WAYS), (True, BACK)], ids=["both_ways", "back"])
def test_t5_buckets(causal, expected):
    got = bucket(torch.tensor(list(expected)), buckets=32, max_distance=128, causal=causal)
    assert dict(zip(expected, got.tolist(), strict=True)) == expected


@pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "back"])
def test_t5_uses_every_bucket_and_farther_never_means_a_lower_one(causal):
    back = bucket(-torch.arange(1000), buckets=32, max_distance=128, causal=causal)
    assert back.unique().tolist() == list(range(32 if causal else 16))
    assert (back.diff() >= 0).all()
    if not causal:
        assert torch.equal(bucket(torch.arange(1, 1000), 32, 128, causal), back[1:] + 16)


@pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "back"])
@pytest.mark.parametrize("per_layer", ["true", "false"])
@torch.no_grad()
def test_t5_bias_is_a_loop_over_queries_and_keys(per_layer, causal):
    modification = f"t5_bias:buckets=8,max_distance=16,per_layer={per_layer}"
    stack, layer = (part_of(modification, place, causal) for place in (STACK, LAYER))
    call, q = call_at(QUERIES, KEYS), normal(2, H, 3, K)
    bias = layer.bias(q, replace(call, position=stack.prepare(q, call)))
    table = layer.table if per_layer == "true" else stack.table
    for b, i, j in [(b, i, j) for b in range(2) for i in range(3) for j in range(6)]:
        row = bucket(KEYS[b, j] - QUERIES[b, i], 8, 16, causal)
        assert torch.equal(bias[b, :, i, j], table[row])


@pytest.mark.parametrize(("per_layer", "tables"), [("true", 4), ("false", 2)])
def test_t5_has_a_table_for_each_stack_or_for_each_layer(per_layer, tables):
    model = small_model(modifications=[f"t5_bias:per_layer={per_layer}"])
    shapes = [tuple(p.shape) for name, p in model.named_parameters() if "position" in name]
    assert shapes == [(32, H)] * tables


# What kinds have in common ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder_only", "encoder_only"])
@pytest.mark.parametrize("position", ["learned", "shaw", "shaw per head", "t5", "t5 per layer"])
@torch.no_grad()
def test_tables_of_zeros_are_no_positions(kind, position):
    plain, model = small_model(kind, ["no_positions"]), small_model(kind, POSITIONS[position], seed=1)
    shared = model.load_state_dict(plain.state_dict(), strict=False)
    assert not shared.unexpected_keys
    ids = random_ids(2, 6, seeded(1))
    assert (states_of(model, ids) - states_of(plain, ids)).abs().max() > 1e-6
    for name in shared.missing_keys:
        model.get_parameter(name).zero_()
    assert_close(states_of(model, ids), states_of(plain, ids), within=1e-12)


def states_of(model, ids):
    if model.kind == "encoder_decoder":
        return model.decode(ids, model.encode(ids))
    return model.decode(ids) if model.kind == "decoder_only" else model.encode(ids)


@pytest.mark.parametrize("kind", ["decoder_only", "encoder_only"])
@pytest.mark.parametrize("position", [name for name in POSITIONS if name != "none"])
@torch.no_grad()
def test_a_shift_of_all_positions_changes_the_states_unless_positions_are_relative(kind, position):
    model, ids = small_model(kind, POSITIONS[position]), random_ids(2, 6, seeded(2))
    call = begin(ids, None, causal=kind == "decoder_only")
    shifted = replace(call, positions=call.positions + 5, key_positions=call.key_positions + 5)
    states = [model.stack(*model.input(ids, model.tables[0], each))[0][-1] for each in (call, shifted)]
    assert torch.equal(states[0], states_of(model, ids))
    difference = (states[0] - states[1]).abs().max()
    assert difference < 1e-9 if position in RELATIVE else difference > 1e-6


# Learned positions and their limit -------------------------------------------------------------------


@pytest.fixture
def five_long():
    return small_model("decoder_only", ["learned_positions:length=5"])


@torch.no_grad()
def test_learned_positions_tell_the_same_word_apart():
    words = torch.full((1, 4), 7)
    learned, none = (small_model("encoder_only", [m]).encode(words)[0] for m in ("learned_positions", "no_positions"))
    assert_close(none, none[:1].expand_as(none), within=1e-12)
    assert (learned[1:] - learned[:-1]).abs().amax(-1).min() > 1e-6


@torch.no_grad()
def test_learned_positions_are_rows_of_the_table():
    part, x = part_of("learned_positions:length=9", STACK), normal(2, 3, 16)
    positions = torch.tensor([[0, 1, 8], [4, 4, 2]])
    assert torch.equal(part.embed(x, call_at(positions)), x + part.table[positions])


def test_a_model_tells_its_limits():
    assert small_model(modifications=["learned_positions:length=5"]).limits == {"encoder": 5, "decoder": 5}
    assert small_model("decoder_only", ["learned_positions"]).limits == {"only": 512}
    assert small_model(modifications=["rotary"]).limits == {}


def test_one_token_too_many_is_an_error_that_names_both_numbers(five_long):
    five_long.decode(random_ids(1, 5, seeded(3)))
    with pytest.raises(ValueError, match=r"\b6 positions.*\b5\b"):
        five_long.decode(random_ids(1, 6, seeded(3)))


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_each_stack_keeps_its_limit(side):
    model = small_model(modifications=["learned_positions:length=5"])
    source, target = (random_ids(1, 6 if side == stack else 5, seeded(4)) for stack in ("encoder", "decoder"))
    with pytest.raises(ValueError, match=r"\b6 positions.*\b5\b"):
        model.decode(target, model.encode(source))


@torch.no_grad()
def test_the_limit_holds_step_by_step(five_long):
    ids, cache = random_ids(2, 6, seeded(5)), Cache(rows=2)
    for t in range(5):
        five_long.decode(ids[:, t : t + 1], cache=cache)
    with pytest.raises(ValueError, match=r"\b6 positions.*\b5\b"):
        five_long.decode(ids[:, 5:], cache=cache)
    assert cache.lengths.tolist() == [5, 5]


@torch.no_grad()
def test_a_full_row_may_wait_while_others_go_on(five_long):
    ids, cache = random_ids(2, 5, seeded(6)), Cache(rows=2)
    ids[1, 3:] = 0
    five_long.decode(ids, cache=cache)
    new = random_ids(1, 1, seeded(7))
    states = five_long.decode(torch.tensor([[0], [new.item()]]), cache=cache)
    assert cache.lengths.tolist() == [5, 4]
    assert_close(states[1], five_long.decode(torch.cat([ids[1:, :3], new], 1))[0, -1:])


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_does_not_count_against_the_limit(five_long, side):
    ids, pads = random_ids(1, 5, seeded(8)), torch.zeros(1, 2, dtype=torch.long)
    padded = torch.cat([pads, ids] if side == "left" else [ids, pads], 1)
    assert_close(five_long.decode(padded)[padded != 0], five_long.decode(ids)[0])
