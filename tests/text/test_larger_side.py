"""A batch is bounded by the larger of both sides; runs of version 0.1 go on with the target side alone."""

import numpy as np
import pytest

from sixfold.core.ids import PAD
from sixfold.tasks.task import usual_task
from sixfold.text.arrays import Examples, Ragged, RowRange
from sixfold.text.batches import LARGER_SIDE, TARGET_SIDE, Batches, in_order
from sixfold.text.bucketing import Lengths, make_tiles

TASK = usual_task("encoder_decoder")
BUDGET = 400


def ragged(lengths):
    ids = np.full(int(np.sum(lengths)), 7, np.uint16)
    return Ragged(ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def pairs(source, target):
    return Examples(ragged(source), ragged(target), (RowRange(len(source), 1.0),))


def summaries(number=300, one_word=True):
    """Long sources with targets of one word; or the other way round."""
    long, short = np.random.default_rng(0).integers(60, 200, number), np.ones(number, np.int64)
    return pairs(long, short) if one_word else pairs(short, long)


def batches_of(examples, lengths=None, **options):
    return Batches(examples, lengths or TASK.lengths(examples), TASK.batch, batch_tokens=BUDGET, seed=3, **options)


def epoch(batches):
    return [batches.next() for _ in range(batches.steps)]


def larger(batch):
    return max(batch.source.numel(), batch.inputs.numel())


def same(left, right):
    return len(left) == len(right) and all(
        (a.source.tolist(), a.inputs.tolist()) == (b.source.tolist(), b.inputs.tolist())
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("one_word", [True, False])
def test_no_step_has_more_cells_on_either_side_than_the_budget(one_word):
    steps = epoch(batches_of(summaries(one_word=one_word)))
    assert max(sum(map(larger, step)) for step in steps) <= BUDGET
    assert sum(len(batch.source) for step in steps for batch in step) == 300
    assert np.mean([larger(batch) for (batch,) in steps]) > BUDGET / 2  # and batches are not all of one row


def test_a_row_beyond_the_budget_is_a_batch_of_its_own():
    steps = epoch(batches_of(pairs([500, 90, 90, 90], [1, 1, 1, 1])))
    assert sorted(tuple(batch.source.shape) for (batch,) in steps) == [(1, 501), (3, 91)]  # with EOS


def test_validation_is_bounded_in_the_same_way():
    examples = summaries()
    assert all(larger(b) <= BUDGET for b in in_order(examples, TASK.lengths(examples), TASK.batch, BUDGET))


def test_an_older_run_goes_on_as_it_began():
    examples, old = summaries(), {"epoch": 0, "index": 0}
    resumed = batches_of(examples)
    resumed.load_state(old)
    assert resumed.state() == {**old, "budget": TARGET_SIDE}
    lengths = TASK.lengths(examples)
    target_only = batches_of(examples, Lengths(lengths.source, lengths.target, target_only=True))
    left, right = epoch(resumed), epoch(target_only)
    assert all(same(a, b) for a, b in zip(left, right, strict=True))
    assert max(larger(batch) for step in left for batch in step) > 10 * BUDGET  # which is why the rule has changed
    assert max(batch.targets.numel() for step in left for batch in step) <= BUDGET


def test_what_an_older_run_counts_is_remembered_when_it_is_saved_again():
    resumed = batches_of(summaries())
    resumed.load_state({"epoch": 1, "index": 0})
    resumed.next()
    again = batches_of(summaries())
    again.load_state(resumed.state())
    assert same(again.next(), resumed.next())
    assert again.state()["budget"] == TARGET_SIDE


def test_a_new_run_counts_the_larger_side_and_says_so():
    batches = batches_of(summaries())
    assert batches.state()["budget"] == LARGER_SIDE
    other = batches_of(summaries())
    batches.next()
    other.load_state(batches.state())
    assert same(batches.next(), other.next())


def test_where_the_target_is_the_longer_side_both_rules_give_the_same_batches():
    examples = pairs(np.arange(300) % 9 + 1, np.arange(300) % 9 + 2)
    new, old = batches_of(examples), batches_of(examples)
    old.load_state({"epoch": 0, "index": 0})
    assert all(same(a, b) for a, b in zip(epoch(new), epoch(old), strict=True))


def test_the_budget_by_hand():
    lengths = Lengths(np.array([5, 3]), np.array([1, 2]))
    assert (lengths.budget(np.array([0, 1])), lengths.counting_target_only().budget(np.array([0, 1]))) == (10, 4)
    assert len(make_tiles(lengths, np.arange(2), 9, np.random.default_rng(0))) == 2
    assert len(make_tiles(lengths.counting_target_only(), np.arange(2), 9, np.random.default_rng(0))) == 1


@pytest.mark.parametrize("pieces", [1, 3])
def test_padding_is_no_excuse(pieces):
    """Cells are counted with padding, whatever the number of micro-batches."""
    chance = np.random.default_rng(1)
    examples = pairs(chance.integers(1, 120, 200), chance.integers(1, 120, 200))
    steps = epoch(batches_of(examples, pieces=pieces))
    sides = [max(sum(b.source.numel() for b in step), sum(b.inputs.numel() for b in step)) for step in steps]
    assert max(sides) <= BUDGET
    assert any((batch.source == PAD).any() for step in steps for batch in step)
