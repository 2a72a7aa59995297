"""Divides the rows of an epoch into steps: little padding, few unused tokens, in random order.

Rows of equal lengths first fill tiles (rectangles of rows that are padded together). The other rows are split in two
again and again, at a length of the source or of the target, where the fewest padded cells result, until each part fits:

    source
      │ ┌───────┬──┐      One step is one tile if that needs little padding. In a small corpus it needs more: with
      │ │       │  │      a few hundred tiles, lengths within a tile must differ. Then a step is two to four
      │ ├───┬───┼──┤      smaller tiles, drawn at random, each padded separately.
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

_MOST_PADDING = 0.028  # with a larger share of padding, a step is divided into smaller tiles
_MOST_TILES = 4  # largest number of tiles in a step
_SMALLEST_TILE = 1000  # fewest tokens of such a tile: each is a pass through the model
_WASTE = 0.2  # cost of an unused token of the budget, in padded cells
_FEW = 8  # the cost of a cut includes unused tokens only if a part makes at most this number of tiles
_EDGE = 0.2  # smallest share of the rows on one side of a cut
_JITTER = 0.02  # random change of a cut's cost, so that other rows share a tile in the next epoch
_UNEVEN = 1.15  # largest work of a piece, relative to the mean, before tiles are cut finer

Tile = Array  # rows
StepTiles = tuple[Tile, ...]


@dataclass(frozen=True)
class Lengths:
    """The tokens of each row on each side. `source` is None if a row has only one sequence."""

    source: Array | None
    target: Array
    target_only: bool = False  # whether the budget counts the target alone, as version 0.1 did

    def sides(self) -> list[Array]:
        return [self.target] if self.source is None else [self.target, self.source]

    def counted(self) -> list[Array]:
        """The sides that count for the budget."""
        return [self.target] if self.target_only else self.sides()

    def counting_target_only(self) -> Lengths:
        return replace(self, target_only=True)

    def padded(self, rows: Array) -> int:
        """Tokens of these rows in one tile, on both sides, with padding."""
        return sum(len(rows) * int(side[rows].max(initial=0)) for side in self.sides())

    def budget(self, rows: Array) -> int:
        """Tokens of these rows in one tile, on the longer side, with padding."""
        return len(rows) * self.longest(rows)

    def longest(self, rows: Array) -> int:
        return max(int(side[rows].max(initial=0)) for side in self.counted())


def tiles_per_step(lengths: Lengths, batch_tokens: int) -> int:
    """The number of tiles into which a step is divided."""
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
    """All steps of an epoch, each with at most `batch_tokens` tokens on the longer side, or a single longer row."""
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
    """Each row `weight` times, in random order; with weight 0.5, another random half in each epoch."""
    chosen, start = [], 0
    for group in groups:
        rows = np.arange(start, start + group.rows)
        times, rest = divmod(group.weight, 1)
        part = round(rest * group.rows)
        if group.rows and not times and not part:
            part = 1  # at least one row, however small the weight
        chosen += [rows] * int(times) + [generator.permutation(rows)[:part]]
        start += group.rows
    return generator.permutation(np.concatenate(chosen))


def make_tiles(lengths: Lengths, rows: Array, budget: int, generator: np.random.Generator) -> list[Tile]:
    """Divide rows into tiles of at most `budget` tokens with padding, or of a single row."""
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
    """Split rows in two where the fewest padded cells result."""
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
    """The cost of a cut after each row but the last: padded cells, and unused tokens if the rows make few tiles."""
    heights = np.arange(1, len(rows)), np.arange(len(rows) - 1, 0, -1)
    widths = [tuple(_widths(side[rows])) for side in lengths.sides()]
    cells = sum(h * w for pair in widths for h, w in zip(heights, pair, strict=True))
    if lengths.budget(rows) > _FEW * budget:
        return np.asarray(cells, np.float64)
    widest = [np.maximum.reduce(both) for both in zip(*widths[: len(lengths.counted())], strict=True)]
    unused = sum(-(h * w) % budget for h, w in zip(heights, widest, strict=True))
    return np.asarray(cells + _WASTE * unused, np.float64)


def _widths(lengths: Array) -> Iterator[Array]:
    """The largest length before and after each cut."""
    yield np.maximum.accumulate(lengths)[:-1]
    yield np.maximum.accumulate(lengths[::-1])[-2::-1]


def deal(lengths: Lengths, step: StepTiles, pieces: int) -> list[list[Array]]:
    """Divide the rows of a step among pieces: equal numbers of tiles, of nearly equal work; some may be empty."""
    hands = _deal_tiles(lengths, step, pieces)
    work = [sum(lengths.padded(share) for share in hand) for hand in hands]
    if len(step) == 1 or max(work) * pieces <= _UNEVEN * sum(work):
        return hands
    cut = [_cut(lengths, tile, pieces) for tile in step]  # more passes, but no process waits for another
    return [list(shares) for shares in zip(*cut, strict=True)]


def _deal_tiles(lengths: Lengths, step: StepTiles, pieces: int) -> list[list[Array]]:
    """Divide tiles among pieces, the largest first; tiles are cut only if there are too few."""
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
    """Cut a tile into parts of nearly equal work and similar lengths."""
    if number == 1:
        return [tile]
    tile = tile[np.lexsort([side[tile] for side in reversed(lengths.sides())])]
    work = sum(side[tile] for side in lengths.sides())
    middles = np.cumsum(work) - work / 2
    return np.split(tile, np.searchsorted(middles, np.sum(work) * np.arange(1, number) / number))
