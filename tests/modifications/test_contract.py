"""What every model promises, whatever its modifications: the checks of sixfold/verify/contract, and a few more.

The tests are parametrised over the registry, so that a new modification inherits them: causality, cached = uncached
and alone = in company in every kind of model that it serves, the others in one form each (tests/support/covering.py).
"""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch

from sixfold import PAD, Cache, Tap, load_model, save
from sixfold.core.memory import Memory
from sixfold.verify.contract import building, looking, reading, running, training
from sixfold.verify.contract.looking import seen_weights
from sixfold.verify.contract.part import CHECKS
from sixfold.verify.contract.subject import SMALL, Subject, states_of, states_of_encoder
from tests.support.architectures import KINDS, WRITERS, alone, architectures, with_attention
from tests.support.covering import covering
from tests.support.small import assert_close, moved_model, random_ids, seeded

subject = cache(Subject)  # checks that only read its model share it
made = cache(moved_model)


def one_by_one(*kinds):
    """All architectures but those of several modifications."""
    return [*with_attention(*kinds), *alone(*kinds)]


# Causality and padding -------------------------------------------------------------------------------


@covering(architectures(*WRITERS), every="kind")
def test_no_state_depends_on_a_later_input(kind, modifications):
    reading.causality(subject(kind, modifications))


@covering(architectures(*KINDS), **reading.padding.axes)
def test_padding_does_not_change_the_real_states(kind, modifications, side):
    reading.padding(subject(kind, modifications), side=side)


@covering(architectures("encoder_decoder"), **reading.source_padding.axes)
def test_padding_of_the_source_does_not_change_the_memory_nor_its_reader(kind, modifications, side):
    reading.source_padding(subject(kind, modifications), side=side)


@covering(architectures(*KINDS), every="kind", **reading.alone_and_in_a_batch.axes)
def test_a_row_is_the_same_alone_and_in_a_batch(kind, modifications, side):
    reading.alone_and_in_a_batch(subject(kind, modifications), side=side)


@covering(architectures(*KINDS))
def test_a_pad_that_is_said_to_be_real_is_a_word(kind, modifications):
    model = subject(kind, modifications).model
    ids = torch.tensor([[5, PAD, 7]])
    as_word, as_padding = (states_of(model, ids, real) for real in (torch.ones_like(ids, dtype=torch.bool), None))
    assert (as_word - as_padding)[:, -1].abs().max() > 1e-6


@pytest.mark.parametrize("side", reading.SIDES)
def test_padding_does_not_change_the_class(side):
    assert reading.class_in_a_batch(Subject("encoder_only", sizes=replace(SMALL, classes=3)), side=side) is None


@covering(architectures(*KINDS))
def test_a_row_of_padding_has_finite_states_and_gradients(kind, modifications):
    reading.only_padding(subject(kind, modifications))


# The cache -------------------------------------------------------------------------------------------


@covering(architectures(*WRITERS), every="kind")
def test_token_by_token_through_a_cache_is_the_whole_at_once(kind, modifications):
    running.token_by_token(subject(kind, modifications))


@covering(architectures(*WRITERS))
def test_chunks_through_a_cache_are_the_whole_at_once(kind, modifications):
    running.chunks(subject(kind, modifications))


@covering(architectures(*WRITERS))
def test_selected_rows_go_on_as_if_alone(kind, modifications):
    running.selected_rows(subject(kind, modifications))


@covering(architectures(*WRITERS), **running.without_the_longest.axes)
def test_rows_go_on_without_the_longest(kind, modifications, left):
    running.without_the_longest(subject(kind, modifications), left=left)


@covering(architectures(*WRITERS))
def test_hypotheses_share_the_memory_of_their_sentence(kind, modifications):
    running.beams(subject(kind, modifications))


@covering(architectures(*WRITERS))
def test_hypotheses_may_begin_before_the_first_step_and_have_different_lengths(kind, modifications):
    running.ragged_beams(subject(kind, modifications))


def test_one_line_of_hypotheses_has_one_sentence():
    with pytest.raises(ValueError, match="different sentences"):
        Cache(rows=2).select(torch.tensor([[0, 1]]))


@covering(architectures(*WRITERS), every="kind", **running.ragged_prompts.axes)
def test_prefixes_of_different_length_go_on_in_one_batch(kind, modifications, side, garbage):
    running.ragged_prompts(subject(kind, modifications), side=side, garbage=garbage)


@covering(architectures(*WRITERS))
def test_a_row_may_pause(kind, modifications):
    running.pauses(subject(kind, modifications))


@covering(architectures(*WRITERS), **running.joins.axes)
def test_a_row_may_join_a_running_batch(kind, modifications, started):
    running.joins(subject(kind, modifications), started=started)


@covering(architectures(*WRITERS))
def test_a_running_batch_may_join_a_fresh_row(kind, modifications):
    running.joins_a_fresh_row(subject(kind, modifications))


@covering(architectures(*WRITERS))
def test_beams_of_equal_width_join(kind, modifications):
    running.joins_beams(subject(kind, modifications))


@torch.no_grad()
def test_a_step_that_breaks_off_can_be_repeated():
    model, ids = made(), random_ids(2, 3, seeded(21))
    memory = model.encode(random_ids(2, 4, seeded(22)))
    cache = Cache(memory)
    model.decode(ids[:, :2], cache=cache)

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = model.decoder.layers[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.decode(ids[:, 2:], cache=cache)
    hook.remove()
    assert_close(model.decode(ids[:, 2:], cache=cache), model.decode(ids, memory)[:, 2:])


def test_what_cannot_be_joined_is_refused():
    with pytest.raises(ValueError, match="2 hypotheses per sentence here, 1 there"):
        Cache(rows=1).select(torch.tensor([[0, 0]])).join(Cache(rows=1))
    with pytest.raises(ValueError, match="memory"):
        Cache(rows=1).join(Cache(Memory((torch.zeros(1, 2, 16),), None)))


@covering(architectures(*WRITERS))
def test_a_step_leaves_the_cache_it_was_selected_from_as_it_was(kind, modifications):
    running.forks(subject(kind, modifications))


# Saved and loaded ------------------------------------------------------------------------------------


@covering(architectures(*KINDS))
def test_a_loaded_model_gives_the_same_bits(kind, modifications):
    building.saved_and_loaded(subject(kind, modifications))


@torch.no_grad()
def test_a_loaded_classifier_gives_the_same_bits(tmp_path):
    model, ids = moved_model("encoder_only", ("post_norm",), classes=3), random_ids(2, 5, seeded(9))
    save(model, tmp_path / "model")
    assert torch.equal(load_model(tmp_path / "model").classify(ids), model.classify(ids))


# Gradients, losses and dropout -----------------------------------------------------------------------


@covering(architectures(*KINDS), **training.recomputing.axes)
def test_recomputing_layers_gives_the_same_gradients(kind, modifications, rate):
    training.recomputing(subject(kind, modifications), rate=rate)


@covering(architectures(*KINDS), **training.loss_by_rows.axes)
def test_the_loss_of_a_batch_is_the_sum_of_its_rows_losses(kind, modifications, smoothing):
    training.loss_by_rows(subject(kind, modifications), smoothing=smoothing)


@covering(one_by_one(*KINDS))
def test_dropout_acts_in_training_as_in_the_plain_model_and_nothing_is_random_in_evaluation(kind, modifications):
    both = Subject(kind, modifications)
    training.dropout(both)
    training.no_chance_in_evaluation(both)


# Looking inside --------------------------------------------------------------------------------------

NAMES = {
    "encoder_decoder": ["encoder.0.attention", "encoder.1.attention"]
    + [f"decoder.{depth}.{part}" for depth in range(2) for part in ("attention", "cross")],
    "decoder_only": ["only.0.attention", "only.1.attention"],
    "encoder_only": ["only.0.attention", "only.1.attention"],
}


@covering(with_attention(*KINDS))
def test_the_names_of_plain_attentions(kind, modifications):
    model = subject(kind, modifications).model
    assert sorted(model.maps) == sorted(model.attentions) == sorted(NAMES[kind])


@covering(one_by_one(*KINDS), **looking.tap_changes_nothing.axes)
def test_a_tap_changes_nothing(kind, modifications, side):
    looking.tap_changes_nothing(subject(kind, modifications), side=side)


@covering(with_attention(*KINDS), every="kind", **looking.tap_changes_nothing.axes)
def test_the_fused_route_is_the_explicit_route(kind, modifications, side):
    looking.tap_changes_nothing(subject(kind, modifications), side=side)


@covering(one_by_one(*KINDS), **looking.tap_weights.axes)
def test_weights_are_zero_on_what_is_hidden_and_sum_to_one_on_the_rest(kind, modifications, side):
    looking.tap_weights(subject(kind, modifications), side=side)


@covering(with_attention(*KINDS), side=reading.SIDES)
@torch.no_grad()
def test_a_plain_attention_sees_all_that_is_not_hidden(kind, modifications, side):
    for name, weights, keys, _ in seen_weights(subject(kind, modifications).model, side):
        assert (weights.masked_select(keys) > 0).all(), name


@torch.no_grad()
def test_a_tap_sees_only_what_it_asked_for():
    model, ids = made(), random_ids(2, 3, seeded(15))
    tap = Tap("decoder.1.*", fields=("q", "heads"))
    model.decode(ids, model.encode(ids, tap=tap), tap=tap)
    assert set(tap.seen) == {(f"decoder.1.{part}", f) for part in ("attention", "cross") for f in ("q", "heads")}
    with pytest.raises(KeyError, match=r"decoder\.1\.attention"):
        tap["decoder.0.cross"]
    with pytest.raises(ValueError, match="wieghts"):
        Tap(fields=("wieghts",))


@covering(one_by_one(*WRITERS))
def test_a_tap_on_hypotheses_sees_what_it_sees_without_a_cache(kind, modifications):
    looking.tap_on_beams(subject(kind, modifications))


# Switching heads off ---------------------------------------------------------------------------------


@covering(one_by_one(*KINDS))
def test_a_gate_of_ones_changes_nothing(kind, modifications):
    looking.gate_of_ones(subject(kind, modifications))


@covering(one_by_one(*KINDS))
def test_a_gate_of_zero_has_an_effect(kind, modifications):
    looking.gate_of_zero(subject(kind, modifications))


def part_of(model, name):
    stack, depth, part = name.split(".")
    return getattr(getattr(model, "stack" if stack == "only" else stack).layers[int(depth)], part)


@covering(with_attention(*KINDS))
@torch.no_grad()
def test_a_gate_of_zero_is_a_head_without_columns_in_the_output_matrix(kind, modifications):
    model, ids = subject(kind, modifications).model, random_ids(2, 4, seeded(18))
    for head, name in enumerate(NAMES[kind]):
        gate = torch.ones(1, 2, dtype=torch.float64)
        gate[0, head % 2] = 0
        cut = copy.deepcopy(model)
        part_of(cut, name).output.weight.unflatten(1, (2, 8))[:, head % 2] = 0
        run = states_of_encoder if name.startswith("encoder") else states_of
        assert_close(run(model, ids, gates={name: gate}), run(cut, ids), within=1e-12)


@covering(one_by_one(*KINDS))
def test_a_gate_for_each_row_acts_on_its_row_only(kind, modifications):
    looking.gate_of_a_row(subject(kind, modifications))


@covering(one_by_one(*WRITERS))
def test_gates_act_on_hypotheses(kind, modifications):
    looking.gates_on_beams(subject(kind, modifications))


# Positions -------------------------------------------------------------------------------------------


@covering(alone(*KINDS), **building.positions.axes)
def test_a_position_is_refused_or_has_an_effect(kind, modifications, position):
    building.positions(subject(kind, modifications), position=position)


def test_every_check_of_the_contract_is_made_by_a_test():
    elsewhere = {
        "meta": "every model is assembled on the meta device, and tests/models/test_count.py counts them",
        "declared_weights": "tests/models/test_fresh_weights.py",
        "every_parameter_learns": "tests/modifications/test_every_modification.py",
        "copying": "tests/modifications/test_every_modification.py",
        "fast_step": "tests/decoding/cpu/test_step.py",
        "int8": "tests/decoding/cpu/test_int8.py",
        "search_without_cache": "tests/decoding/test_company.py, by the same function",
        "search_in_company": "tests/decoding/test_company.py, by the same function",
    }
    here = {name for test in globals().values() if hasattr(test, "__code__") for name in test.__code__.co_names}
    assert {check.name for check in CHECKS} <= here | elsewhere.keys()
