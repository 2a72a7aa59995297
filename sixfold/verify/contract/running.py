"""Checks that a cache changes no state, and that rows in one batch have the same states as alone.

Letters: S sentences, w hypotheses of each, L tokens, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from sixfold.core.ids import PAD
from sixfold.verify.contract.check import Check, need_same
from sixfold.verify.contract.reading import SIDES
from sixfold.verify.contract.subject import (
    Subject,
    fresh_cache,
    pad,
    random_ids,
    random_rows,
    seeded,
    states_alone,
    words_of,
)

_STATE = (
    "earlier tokens are known only through call.grow (one state per token) or call.carry (one of fixed size), never "
    "through attributes of the part; two parts of one layer need places of different names (place.named)"
)
_ROWS = (
    "rows of call.grow, call.keep, call.carry, call.sight and call.memory_sight are those of x; rows of call.memory "
    "are sentences, fewer than those of x in a beam: read it through call.keep"
)
_RAGGED = (
    "rows stand at different positions (call.positions, call.key_positions), and a token that is not in call.real "
    "leaves a carried state as it was"
)
_FIRST = (
    "a carried state starts at first(memory), with one row or one per sentence; what is made of the memory is made in "
    "call.keep, so that it is also made for rows that join later"
)


class Running:
    """Rows that are written together through one cache. Each keeps its words and its states."""

    def __init__(self, model: Any, lengths: Sequence[int]):
        """`lengths` are those of the sources."""
        self.model, self.words, self.generator = model, words_of(model), seeded(7)
        self.sources = random_rows(lengths, seeded(8), self.words)
        self.cache = fresh_cache(model, self.sources)
        self.rows: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in lengths]  # ids (L,), states (L, D)

    def select(self, rows: list[Any]) -> None:
        """Continue with these rows: a line per sentence with its hypotheses, or one row each."""
        chosen = torch.tensor(rows)
        lines = chosen if chosen.dim() == 2 else chosen[:, None]
        self.sources = [self.sources[int(line[0]) // self.cache.width] for line in lines]
        self.rows = [self.rows[int(row)] for row in chosen.flatten()]
        self.cache = self.cache.select(chosen)

    def beside(self, *lengths: int) -> Running:
        """Other rows of this model, whose sources have these lengths."""
        return Running(self.model, lengths)

    def join(self, other: Running) -> None:
        self.cache = self.cache.join(other.cache)
        self.sources, self.rows = self.sources + other.sources, self.rows + other.rows

    def write(self, *lengths: int, side: str = "right", garbage: bool = False) -> None:
        """Write this many new words in each row; padding may have the ids of words."""
        lengths = lengths * len(self.rows) if len(lengths) == 1 else lengths
        new = random_rows(lengths, self.generator, self.words)
        ids, real = pad(new, side), None
        if garbage:
            real = ids != PAD
            ids = torch.where(real, ids, random_ids(len(ids), ids.shape[1], self.generator, self.words))
        states = self.model.decode(ids, real=real, cache=self.cache)
        real = pad(new, side) != PAD
        self.rows = [([*words, new[i]], [*before, states[i, real[i]]]) for i, (words, before) in enumerate(self.rows)]

    def need_as_alone(self) -> None:
        lengths = [len(torch.cat(words)) for words, _ in self.rows]
        assert self.cache.lengths.tolist() == lengths, "the cache counts the tokens of each row"
        for i, (words, states) in enumerate(self.rows):
            source = self.sources[i // self.cache.width]
            what = f"row {i} of {len(self.rows)} differs from what it is without a cache"
            need_same(torch.cat(states), states_alone(self.model, source, torch.cat(words)), what)


def running(advice: str, *, sources: Sequence[int] = (4, 2, 5), **axes: Sequence[Any]) -> Callable[..., Check]:
    """Turn a function that writes some rows into a check: at the end, each row is as if alone.

    The rows are its first argument; `sources` are the lengths of their sources.
    """

    def checked(write: Callable[..., None]) -> Check:
        @wraps(write)
        @torch.no_grad()
        def holds(subject: Subject, **form: Any) -> None:
            rows = Running(subject.model, sources)
            write(rows, **form)
            rows.need_as_alone()

        return Check(holds, advice, needs=("writes_text",), axes=axes)

    return checked


@running(_STATE)
def token_by_token(rows: Running) -> None:
    """Token by token through a cache gives the states of one pass over the text."""
    for _ in range(6):
        rows.write(1)


@running(_STATE)
def chunks(rows: Running) -> None:
    """Several tokens at a time through a cache give the states of one pass over the text."""
    for length in (3, 1, 2):
        rows.write(length)


@running(_RAGGED, side=SIDES, garbage=(False, True))
def ragged_prompts(rows: Running, side: str, garbage: bool) -> None:
    """Prompts of different length, padded at either side, go on in one batch."""
    rows.write(1, 3, 5, side=side, garbage=garbage)
    rows.write(1)
    rows.write(2, 1, 3, side=side, garbage=garbage)
    rows.write(1)


@running(_RAGGED)
def pauses(rows: Running) -> None:
    """A row may read nothing in a step."""
    for lengths in ((1, 0, 2), (1, 1, 0), (0, 2, 1)):
        rows.write(*lengths)


@running(_STATE)
def selected_rows(rows: Running) -> None:
    """Rows that are reordered, repeated or dropped go on as if alone."""
    rows.write(3)
    for order in ([2, 0, 1], [1, 1, 0, 2], [3, 0]):
        rows.select(order)
        rows.write(2)
        rows.write(1)


@running(_STATE, left=((1, 0), (0, 0)))
def without_the_longest(rows: Running, left: Sequence[int]) -> None:
    """Rows go on when the longest row is dropped."""
    rows.write(1, 3, 7)
    rows.select(list(left))
    rows.write(1)
    rows.write(2)


@running(_STATE)
def forks(rows: Running) -> None:
    """A step on selected rows does not change the cache from which they were selected."""
    rows.write(1, 2, 3)
    before = rows.cache, rows.rows
    rows.select([0, 1, 2])
    rows.write(2)
    rows.cache, rows.rows = before
    rows.write(1)


@running(_ROWS, sources=(4, 2))
def beams(rows: Running) -> None:
    """The hypotheses of a beam, which share the memory of their sentence, go on as if alone."""
    rows.write(2)
    memory = rows.cache.memory
    rows.select([[0, 0, 0], [1, 1, 1]])  # a beam begins
    rows.write(1)
    rows.select([[2, 0, 0], [4, 4, 5]])  # forks, in each sentence apart
    assert rows.cache.memory is memory
    rows.write(2)
    rows.select([[3, 5], [0, 1]])  # narrows, and the sentences change places
    rows.write(1)
    rows.select([3, 0])  # and ends
    assert rows.cache.width == 1
    rows.write(1)


@running(_ROWS, sources=(4, 2))
def ragged_beams(rows: Running) -> None:
    """A beam may begin before the first step, and its hypotheses have different lengths."""
    rows.select([[0, 0], [1, 1]])
    rows.write(1, 4, 2, 3)
    rows.write(1)
    rows.select([[3, 3], [0, 0]])  # without the longest
    rows.write(2)


@running(_FIRST, started=(0, 1, 6))
def joins(rows: Running, started: int) -> None:
    """A row joins a running batch, fresh or after some tokens."""
    newcomer = rows.beside(7)
    for _ in range(4):
        rows.write(1)
    if started:
        newcomer.write(started)
    rows.join(newcomer)
    rows.write(1)
    rows.write(2)
    rows.select([3, 1])
    rows.write(1)


@running(_FIRST, sources=(1,))
def joins_a_fresh_row(rows: Running) -> None:
    """A running batch joins a row that has read nothing."""
    others = rows.beside(4, 2, 5)
    others.write(4)
    rows.join(others)
    rows.write(3, 1, 1, 2)
    rows.write(1)


@running(_FIRST, sources=(4,))
def joins_beams(rows: Running) -> None:
    """Beams of equal width join."""
    others = rows.beside(2, 6)
    rows.write(3)
    rows.select([[0, 0]])
    others.select([[0, 0], [1, 1]])
    others.write(1)
    rows.join(others)
    rows.write(1)
    rows.select([[5, 4], [1, 0]])
    rows.write(1)
