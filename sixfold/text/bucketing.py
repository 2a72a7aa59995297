"""Which rows make up each step of an epoch: little padding, few tokens wasted, in random order.

Rows of equal lengths first fill whole tiles (rectangles of rows that are padded together). What is left is
halved again and again, at the length of the source or of the target, wherever the padded cells become
fewest, until each part fits:

    source
      │ ┌───────┬──┐      One step is one tile if that wastes little. In a small corpus it would not: with
      │ │       │  │      some hundred tiles the lengths within one must differ. Then a step is two to four
      │ ├───┬───┼──┤      smaller tiles, drawn at random, each padded by itself.
      │ │   │   │  │
      └─┴───┴───┴──┴─ target
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sixfold.text.arrays import Array, RowRange

_MOST_PADDING = 0.028  # above this share of all cells, a step is made of smaller tiles …
_MOST_TILES = 4  # … but of not more than so many,
_SMALLEST_TILE = 1000  # with not less than so many tokens: each is a pass through the model
_WASTE = 0.2  # what an unused token of the budget costs, in padded cells
_FEW = 8  # tiles that a part still makes, from where on unused tokens count
_EDGE = 0.2  # no part is smaller than this share of what it was cut from
_JITTER = 0.02  # by how much chance may change the cost of a cut, so that other rows meet in the next epoch
_UNEVEN = 1.15  # how much more than the mean a piece may have to do before tiles are cut finer

Tile = Array  # rows
StepTiles = tuple[Tile, ...]


@dataclass(frozen=True)
class Lengths:
    """Cells that each row takes before padding. `source` is None where there is one sequence only."""

    source: Array | None
    target: Array
    target_only: bool = False  # whether the budget counts the target alone, as version 0.1 did

    def sides(self) -> list[Array]:
        return [self.target] if self.source is None else [self.target, self.source]

    def counted(self) -> list[Array]:
        """The sides of which the longer one fills the budget."""
        return [self.target] if self.target_only else self.sides()

    def counting_target_only(self) -> Lengths:
        return replace(self, target_only=True)

    def padded(self, rows: Array) -> int:
        """Cells that these rows take together."""
        return sum(len(rows) * int(side[rows].max(initial=0)) for side in self.sides())

    def budget(self, rows: Array) -> int:
        """Tokens with padding, of the side that has more."""
        return len(rows) * self.longest(rows)

    def longest(self, rows: Array) -> int:
        return max(int(side[rows].max(initial=0)) for side in self.counted())


def tiles_per_step(lengths: Lengths, batch_tokens: int) -> int:
    """Into how many tiles a step must be divided."""
    rows = np.arange(len(lengths.target))
    real = sum(int(side.sum()) for side in lengths.sides())
    for number in range(1, _MOST_TILES):
        if batch_tokens < (number + 1) * _SMALLEST_TILE:
            return number
        tiles = make_tiles(lengths, rows, batch_tokens // number, np.random.default_rng(0))
        if real >= (1 - _MOST_PADDING) * sum(lengths.padded(tile) for tile in tiles):
            return number
    return _MOST_TILES


def plan_epoch(
    lengths: Lengths, groups: Sequence[RowRange], batch_tokens: int, number: int, generator: np.random.Generator
) -> list[StepTiles]:
    """All steps of an epoch, with at most `batch_tokens` tokens of the longer side each, unless one row has more."""
    rows = _rows_of_epoch(groups, generator)
    tiles = make_tiles(lengths, rows, batch_tokens // number, generator)
    steps: list[StepTiles] = []
    step: list[Tile] = []
    budget = batch_tokens
    for index in generator.permutation(len(tiles)):
        tile = tiles[index]
        needed = lengths.budget(tile)
        if step and (needed > budget or number == 1):
            steps.append(tuple(step))
            step, budget = [], batch_tokens
        step.append(tile)
        budget -= needed
    return [*steps, tuple(step)]


def _rows_of_epoch(groups: Sequence[RowRange], generator: np.random.Generator) -> Array:
    """Each row as often as its weight says, in random order; for 0.5, another random half each epoch."""
    chosen, start = [], 0
    for group in groups:
        rows = np.arange(start, start + group.rows)
        whole, rest = divmod(group.weight, 1)
        part = round(rest * group.rows)
        if group.rows and not whole and not part:
            part = 1  # be it ever so rare
        chosen += [rows] * int(whole) + [generator.permutation(rows)[:part]]
        start += group.rows
    return generator.permutation(np.concatenate(chosen))


def make_tiles(lengths: Lengths, rows: Array, budget: int, generator: np.random.Generator) -> list[Tile]:
    """All these rows, in tiles of at most `budget` tokens with padding, or of a single row."""
    tiles, rest = _equal_rows(lengths, rows, budget)
    parts = [rest] if len(rest) else []
    while parts:
        part = parts.pop()
        if len(part) == 1 or lengths.budget(part) <= budget:
            tiles.append(part)
        else:
            parts += _halve(lengths, part, budget, generator)
    return tiles


def _equal_rows(lengths: Lengths, rows: Array, budget: int) -> tuple[list[Tile], Array]:
    """Full tiles of rows with the same lengths, and the rows that are left."""
    rows = rows[np.lexsort([side[rows] for side in reversed(lengths.sides())])]
    differs = np.any([np.diff(side[rows]) != 0 for side in lengths.sides()], axis=0)
    starts = np.concatenate([[0], np.flatnonzero(differs) + 1, [len(rows)]])
    tiles, rest = [], [rows[:0]]
    for start, end in pairwise(starts):
        height = max(1, budget // max(1, lengths.longest(rows[start : start + 1])))
        full = start + (end - start) // height * height
        tiles += [rows[i : i + height] for i in range(start, full, height)]
        rest.append(rows[full:end])
    return tiles, np.concatenate(rest)


def _halve(lengths: Lengths, rows: Array, budget: int, generator: np.random.Generator) -> tuple[Array, Array]:
    """Cut in two where the padded cells become fewest."""
    best: tuple[float, Array, int] | None = None
    low = max(1, int(len(rows) * _EDGE))
    cuts = slice(low - 1, max(low, len(rows) - low))
    for side in lengths.sides():
        ordered = rows[np.argsort(side[rows], kind="stable")]
        costs = _costs(lengths, ordered, budget)[cuts]
        costs *= 1 + _JITTER * generator.random(len(costs))
        index = int(costs.argmin())
        if best is None or costs[index] < best[0]:
            best = costs[index], ordered, low + index
    assert best is not None
    _, ordered, cut = best
    return ordered[:cut], ordered[cut:]


def _costs(lengths: Lengths, rows: Array, budget: int) -> Array:
    """Of a cut after each row but the last: padded cells, and unused tokens once there are few tiles to be made."""
    heights = np.arange(1, len(rows)), np.arange(len(rows) - 1, 0, -1)
    widths = [tuple(_widths(side[rows])) for side in lengths.sides()]
    cells = sum(h * w for pair in widths for h, w in zip(heights, pair, strict=True))
    if lengths.budget(rows) > _FEW * budget:
        return np.asarray(cells, np.float64)
    widest = [np.maximum.reduce(both) for both in zip(*widths[: len(lengths.counted())], strict=True)]
    unused = sum(-(h * w) % budget for h, w in zip(heights, widest, strict=True))
    return np.asarray(cells + _WASTE * unused, np.float64)


def _widths(lengths: Array) -> Iterator[Array]:
    """The greatest length before and after each cut."""
    yield np.maximum.accumulate(lengths)[:-1]
    yield np.maximum.accumulate(lengths[::-1])[-2::-1]


def deal(lengths: Lengths, step: StepTiles, pieces: int) -> list[list[Array]]:
    """The rows of a step for each piece: as many tiles each, of nearly equal work. Some may have no row."""
    hands = _deal_whole(lengths, step, pieces)
    work = [sum(lengths.padded(share) for share in hand) for hand in hands]
    if len(step) == 1 or max(work) * pieces <= _UNEVEN * sum(work):
        return hands
    cut = [_cut(lengths, tile, pieces) for tile in step]  # more passes, but nobody waits for another
    return [list(shares) for shares in zip(*cut, strict=True)]


def _deal_whole(lengths: Lengths, step: StepTiles, pieces: int) -> list[list[Array]]:
    """Tiles are cut only where there are fewer than pieces, the largest first."""
    each = -(-len(step) // pieces)
    parts = [1] * len(step)
    work = np.array([lengths.padded(tile) for tile in step])
    for _ in range(each * pieces - len(step)):
        parts[int(np.argmax(work / parts))] += 1
    shares = [share for tile, number in zip(step, parts, strict=True) for share in _cut(lengths, tile, number)]
    hands: list[list[Array]] = [[] for _ in range(pieces)]
    open_hands = [(0, hand) for hand in range(pieces)]  # by their work, the least first
    for share in sorted(shares, key=lengths.padded, reverse=True):
        load, hand = heapq.heappop(open_hands)
        hands[hand].append(share)
        if len(hands[hand]) < each:
            heapq.heappush(open_hands, (load + lengths.padded(share), hand))
    return hands


def _cut(lengths: Lengths, tile: Tile, number: int) -> list[Array]:
    """A tile in parts of nearly equal work and like lengths."""
    if number == 1:
        return [tile]
    tile = tile[np.lexsort([side[tile] for side in reversed(lengths.sides())])]
    work = sum(side[tile] for side in lengths.sides())
    middles = np.cumsum(work) - work / 2
    return np.split(tile, np.searchsorted(middles, np.sum(work) * np.arange(1, number) / number))
