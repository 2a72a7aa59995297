"""Batches: every row once, little padding, the same rows for any number of pieces, and a place that can be saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from sixfold.core.batch import Batch
from sixfold.core.ids import BOS, EOS, MASK, PAD
from sixfold.text.arrays import Array, Examples, Ragged, RowRange
from sixfold.text.bucketing import Lengths, deal, make_tiles, plan_epoch
from tests.support.by_kind import Batches, in_order

WORDS = 50_000


def ragged_from(rows):
    """Rows that are in memory already."""
    offsets = np.cumsum([0, *map(len, rows)])
    return Ragged(np.concatenate([np.array(row, np.uint16) for row in rows]), offsets.astype(np.int64))


def corpus(number: int, *, groups: Sequence[RowRange] | None = None) -> Examples:
    """Pairs of 3 to 50 words with correlated lengths, in subwords. The first target id says which row it is."""
    generator = np.random.default_rng(0)
    words = np.clip(np.exp(generator.normal(2.5, 0.6, number)), 3, 50)
    source = np.maximum(1, words * 1.35 * np.exp(generator.normal(0, 0.12, number))).astype(int)
    target = np.maximum(1, words * 1.5 * np.exp(generator.normal(0, 0.2, number))).astype(int)
    return Examples(_rows(source), _rows(target), tuple(groups or [RowRange(number, 1.0)]))


def _rows(lengths: Sequence[int] | Array) -> Ragged:
    lengths = np.array(lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.full(offsets[-1], 7, np.uint16)
    ids[offsets[:-1]] = 5 + np.arange(len(lengths))
    return Ragged(ids, offsets)


def windows(number: int, width: int, last: int | None = None) -> Examples:
    lengths = [width] * (number - 1) + [last or width]
    return Examples(None, _rows(lengths), (RowRange(number, 1.0),))


def rows_of(batches: Iterable[Batch]) -> list[int]:
    """Which rows are in these batches."""
    return [int(row[0]) - 5 for batch in batches for row in batch.targets if row[0] != PAD]


def epoch(batches: Batches) -> list[list[Batch]]:
    """All steps of the next epoch."""
    first = batches.next()
    return [first, *(batches.next() for _ in range(batches.steps - 1))]


def same(left: list[Batch], right: list[Batch]) -> bool:
    pairs = zip(left, right, strict=True)
    return all(_equal(a.get(k), b.get(k)) for a, b in pairs for k in ("source", "inputs", "targets", "weights"))


def _equal(left: Tensor | None, right: Tensor | None) -> bool:
    return left is right if left is None or right is None else torch.equal(left, right)


def test_a_pair_by_hand():
    examples = Examples(ragged_from([[7, 8], [9]]), ragged_from([[5], [6, 7, 8]]), (RowRange(2, 1.0),))
    (batch,) = in_order(examples, "encoder_decoder", 100)
    order = [0, 1] if batch.targets[0, 0] == 5 else [1, 0]
    assert batch.source[order].tolist() == [[7, 8, EOS], [9, EOS, PAD]]
    assert batch.inputs[order].tolist() == [[BOS, 5, PAD, PAD], [BOS, 6, 7, 8]]
    assert batch.targets[order].tolist() == [[5, EOS, PAD, PAD], [6, 7, 8, EOS]]
    assert {t.dtype for t in (batch.source, batch.inputs, batch.targets)} == {torch.int64}
    batches = Batches(examples, "encoder_decoder", batch_tokens=100, seed=1)
    batches.next()
    assert batches.padding == 3 / 14


def test_a_window_by_hand():
    examples = Examples(None, ragged_from([[5, 6, EOS], [7, 8]]), (RowRange(2, 1.0),))
    (batch,) = in_order(examples, "decoder_only", 100)
    order = [0, 1] if batch.targets[0, 0] == 5 else [1, 0]
    assert batch.source is None
    assert batch.inputs[order].tolist() == [[BOS, 5, 6], [BOS, 7, PAD]]
    assert batch.targets[order].tolist() == [[5, 6, EOS], [7, 8, PAD]]


@pytest.mark.parametrize("batch_tokens", [20, 1500, 4096])
@pytest.mark.parametrize("pieces", [1, 3])
def test_each_row_comes_once_in_an_epoch(batch_tokens, pieces):
    rows = min(3000, batch_tokens * 10)
    batches = Batches(corpus(rows), "encoder_decoder", batch_tokens=batch_tokens, seed=1, pieces=pieces)
    for number in range(2):
        steps = epoch(batches)
        assert batches.epoch == number
        assert sorted(row for step in steps for row in rows_of(step)) == list(range(rows))
        for step in steps:
            tokens = sum(batch.targets.numel() for batch in step)
            assert tokens <= batch_tokens + pieces or len(rows_of(step)) == 1
            for batch in step:  # and source and target of one row stay together
                assert [int(r[0]) for r in batch.source if r[0] != EOS] == [int(r[0]) for r in batch.targets if r[0]]


def test_weights_say_how_often_rows_come():
    groups = [RowRange(100, 2.0), RowRange(100, 0.5), RowRange(100, 1.25), RowRange(1, 0.1)]
    batches = Batches(corpus(301, groups=groups), "encoder_decoder", batch_tokens=500, seed=1)
    halves = []
    for _ in range(2):
        counts = Counter(row for step in epoch(batches) for row in rows_of(step))
        assert [counts[row] for row in range(100)] == [2] * 100
        assert Counter(counts[row] for row in range(100, 200)) == {0: 50, 1: 50}
        assert Counter(counts[row] for row in range(200, 300)) == {1: 75, 2: 25}
        assert counts[300] == 1
        halves.append({row for row in range(100, 200) if counts[row]})
    assert halves[0] != halves[1]


def test_at_most_three_percent_is_padding():
    """On as many pairs as help-en-de has. With one tile a step, 8,000 tokens would have 5 or 6 % (see plan.py)."""
    examples = corpus(28_000)
    for batch_tokens in (1500, 3000, 8000):
        batches = Batches(examples, "encoder_decoder", batch_tokens=batch_tokens, seed=1)
        cells = pads = tokens = 0.0
        for _ in range(batches.steps):
            step = batches.next()
            read = sum(batch.source.numel() + batch.inputs.numel() for batch in step)
            cells, pads = cells + read, pads + read * batches.padding
            tokens += sum(batch.targets.numel() for batch in step)
        assert pads / cells <= 0.03
        assert tokens / batches.steps >= 0.85 * batch_tokens  # and not by leaving steps half empty


@pytest.mark.parametrize("batch_tokens", [700, 4096])
def test_the_rows_of_a_step_do_not_depend_on_pieces(batch_tokens):
    examples = corpus(3000)
    runs = {
        n: Batches(examples, "encoder_decoder", batch_tokens=batch_tokens, seed=1, pieces=n)
        for n in (1, 2, 3, 4, 8, 50)
    }
    for _ in range(5):
        steps = {n: batches.next() for n, batches in runs.items()}
        rows = sorted(rows_of(steps[1]))
        for n, step in steps.items():
            assert sorted(rows_of(step)) == rows
            assert len(step) % n == 0


def test_pieces_have_nearly_equal_work():
    examples = corpus(10_000)
    for pieces in (2, 3, 4):
        lone = Batches(examples, "encoder_decoder", batch_tokens=4096, seed=1)
        batches = Batches(examples, "encoder_decoder", batch_tokens=4096, seed=1, pieces=pieces)
        slowest = mean = 0.0
        for _ in range(20):
            lone.next()
            step = batches.next()
            each = len(step) // pieces
            work = [
                sum(b.source.numel() + b.inputs.numel() for b in step[i : i + each]) for i in range(0, len(step), each)
            ]
            slowest, mean = slowest + max(work), mean + sum(work) / pieces
            assert batches.padding <= lone.padding + 0.01
        assert slowest / mean < 1.12


def test_only_the_pieces_asked_for_are_built_in_that_order():
    def make() -> Batches:
        return Batches(corpus(500), "encoder_decoder", batch_tokens=400, seed=1, pieces=4)

    whole, some = make(), make()
    for which in ([2], [3, 0], [], range(4)):
        step = whole.next()
        assert same(some.next(which), [step[i] for i in which])
    assert same(whole.next(), some.next())


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder_only", "encoder_only"])
def test_a_piece_without_rows_has_no_target(kind):
    examples = corpus(1) if kind == "encoder_decoder" else windows(1, 5)
    step = Batches(examples, kind, batch_tokens=100, seed=1, pieces=3, vocab=WORDS).next()
    assert len(step) == 3
    empty = [batch for batch in step if not (batch.targets != PAD).any()]
    assert len(empty) == 2
    for batch in empty:
        assert batch.targets.shape == (1, 1)
        read = [ids for ids in (batch.source, batch.inputs) if ids is not None]
        assert all(ids.shape == (1, 1) and ids.item() != PAD for ids in read)


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder_only", "encoder_only"])
def test_a_saved_place_gives_the_same_batches(kind):
    examples = corpus(400) if kind == "encoder_decoder" else windows(60, 16, last=3)

    def make(seed: int) -> Batches:
        return Batches(examples, kind, batch_tokens=200, seed=seed, pieces=2, vocab=WORDS)

    left, states, steps = make(3), [], []
    while left.state()["epoch"] < 2 or left.state()["index"] < 3:
        states.append(left.state())
        steps.append(left.next())
    assert states[0] == {"epoch": 0, "index": 0, "budget": "larger side"}
    assert left.epoch == 2
    right = make(3)
    for place in (0, len(steps) // 2, len(steps) - 4, 5):
        right.load_state(states[place])
        assert all(same(right.next(), step) for step in steps[place : place + 4])
    assert not all(same(a, b) for a, b in zip(epoch(make(4)), steps, strict=False))
    with pytest.raises(ValueError, match="other data"):
        right.load_state({"epoch": 0, "index": 10_000})


def test_epochs_differ():
    batches = Batches(corpus(2000), "encoder_decoder", batch_tokens=1000, seed=1)
    first, second = ([frozenset(rows_of(step)) for step in epoch(batches)] for _ in range(2))
    assert len(set(first) & set(second)) < len(first) / 10
    lengths = [batch.targets.shape[1] for step in epoch(batches) for batch in step]
    assert lengths != sorted(lengths)


def test_the_global_generators_are_left_alone():
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    Batches(windows(20, 8), "encoder_only", batch_tokens=50, seed=1, vocab=WORDS).next()
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # type: ignore[index]


def test_masked_words_follow_the_shares():
    """15 % are chosen; of them 80 % are masked, 10 % replaced, 10 % kept. Only chosen ones are targets."""
    examples = Examples(None, ragged_from([[7] * 200] * 500), (RowRange(500, 1.0),))
    batches = list(in_order(examples, "encoder_only", 10_000, vocab=1000))
    source, targets, chosen = (torch.cat([b.get(name) for b in batches]) for name in ("source", "targets", "weights"))
    assert sum(b.counts["words"] for b in batches) == chosen.sum()
    assert (targets[chosen] == 7).all()
    assert (source[~chosen] == 7).all()
    assert abs(chosen.double().mean() - 0.15) < 0.005
    assert abs((source[chosen] == MASK).double().mean() - 0.8) < 0.015
    assert abs((source[chosen] == 7).double().mean() - 0.1) < 0.015
    others = source[chosen & (source != MASK) & (source != 7)]
    assert (others.min(), others.max()) >= (5, 900)
    assert others.max() < 1000
    assert len(others.unique()) > 600
    assert all(row.any() for row in chosen)


def test_masks_depend_on_seed_epoch_and_row_only():
    examples = windows(40, 30, last=7)

    def masked(seed: int, pieces: int, tokens: int, epochs: int = 1) -> list[dict[int, list[int]]]:
        batches = Batches(examples, "encoder_only", batch_tokens=tokens, seed=seed, pieces=pieces, vocab=WORDS)
        return [{_row(b, i): _masks(b, i) for step in epoch(batches) for b in step for i in range(len(b.targets))
                 if b.get("weights")[i].any()} for _ in range(epochs)]  # fmt: skip

    def _masks(batch: Batch, i: int) -> list[int]:
        return batch.get("weights")[i].nonzero().flatten().tolist()

    def _row(batch: Batch, i: int) -> int:
        return int(batch.targets[i, 0]) - 5

    one, two = masked(1, 1, 100, epochs=2)
    assert sorted(one) == list(range(40))
    assert one == masked(1, 3, 600)[0]
    assert one != two
    assert one != masked(2, 1, 100)[0]
    assert len({tuple(masks) for masks in one.values()}) > 30


def test_even_the_shortest_window_has_a_target():
    """A step without one would have nothing to divide its loss by."""
    batches = list(in_order(windows(100, 1), "encoder_only", 10, vocab=WORDS))
    assert all(batch.get("weights").all() for batch in batches)


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder_only", "encoder_only"])
def test_in_order_has_each_row_once_and_is_always_the_same(kind):
    examples = corpus(300) if kind == "encoder_decoder" else windows(30, 9, last=2)
    first, second = (list(in_order(examples, kind, 100, vocab=WORDS)) for _ in range(2))
    assert same(first, second)
    if kind != "encoder_only":
        assert sorted(rows_of(first)) == list(range(len(examples)))
    assert sum(len(batch.targets) for batch in first) == len(examples)


def test_tiles_of_equal_rows_have_no_padding():
    lengths = Lengths(np.repeat([3, 4], 100), np.repeat([5, 6], 100))
    tiles = make_tiles(lengths, np.arange(200), 60, np.random.default_rng(0))
    full = [tile for tile in tiles if len({int(lengths.target[row]) for row in tile}) == 1]
    assert sum(map(len, full)) >= 8 * 12 + 10 * 10
    assert sorted(np.concatenate(tiles)) == list(range(200))


def test_a_row_over_the_budget_stands_alone():
    lengths = Lengths(None, np.array([3, 50, 3, 3, 60]))
    steps = plan_epoch(lengths, [RowRange(5, 1.0)], 10, 1, np.random.default_rng(0))
    assert sorted(tuple(sorted(row for tile in step for row in tile)) for step in steps) == [(0, 2, 3), (1,), (4,)]


def test_dealing_splits_the_largest_tiles():
    lengths = Lengths(None, np.array([5] * 8 + [10] * 2))
    hands = deal(lengths, (np.arange(8), np.arange(8, 10)), 3)
    assert sorted(sorted(map(int, share)) for hand in hands for share in hand) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_tiles_are_cut_finer_where_pieces_would_wait_for_each_other():
    """Two tiles of equal work for three pieces: cut whole, one would do twice what the others do."""
    lengths = Lengths(None, np.array([5] * 12 + [10] * 6))
    hands = deal(lengths, (np.arange(12), np.arange(12, 18)), 3)
    assert [[len(share) for share in hand] for hand in hands] == [[4, 2]] * 3
