"""What a cache may change: nothing. Rows that are written together have the states that each has alone.

Letters: S sentences, w hypotheses of each, L tokens, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sixfold.core.ids import PAD
from sixfold.verify.contract.check import check, need_same
from sixfold.verify.contract.reading import SIDES
from sixfold.verify.contract.subject import (
    Subject,
    fresh_cache,
    pad,
    random_ids,
    random_rows,
    seeded,
    states_alone,
)

_WRITES = ("writes_text",)
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

    def __init__(self, model: Any, sources: Sequence[Tensor]):
        self.model, self.sources, self.generator = model, list(sources), seeded(7)
        self.cache = fresh_cache(model, sources)
        self.rows: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in sources]  # ids (L,), states (L, D)

    def select(self, rows: list[Any]) -> None:
        """Go on with these rows, in lines of hypotheses or one by one."""
        chosen = torch.tensor(rows)
        lines = chosen if chosen.dim() == 2 else chosen[:, None]
        self.sources = [self.sources[int(line[0]) // self.cache.width] for line in lines]
        self.rows = [self.rows[int(row)] for row in chosen.flatten()]
        self.cache = self.cache.select(chosen)

    def join(self, other: Running) -> None:
        self.cache = self.cache.join(other.cache)
        self.sources, self.rows = self.sources + other.sources, self.rows + other.rows

    def write(self, *lengths: int, side: str = "right", garbage: bool = False) -> None:
        """Write this many new words in each row; padding may have the ids of words."""
        lengths = lengths * len(self.rows) if len(lengths) == 1 else lengths
        new = random_rows(lengths, self.generator)
        ids, real = pad(new, side), None
        if garbage:
            real = ids != PAD
            ids = torch.where(real, ids, random_ids(len(ids), ids.shape[1], self.generator))
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


def running(subject: Subject, lengths: Sequence[int] = (4, 2, 5)) -> Running:
    """Rows whose sources have these lengths."""
    return Running(subject.model, random_rows(lengths, seeded(8)))


@check(_STATE, needs=_WRITES)
@torch.no_grad()
def token_by_token(subject: Subject) -> None:
    """Token by token through a cache gives the states of one pass over the text."""
    rows = running(subject)
    for _ in range(6):
        rows.write(1)
    rows.need_as_alone()


@check(_STATE, needs=_WRITES)
@torch.no_grad()
def chunks(subject: Subject) -> None:
    """Several tokens at a time through a cache give the states of one pass over the text."""
    rows = running(subject)
    for length in (3, 1, 2):
        rows.write(length)
    rows.need_as_alone()


@check(_RAGGED, needs=_WRITES, side=SIDES, garbage=(False, True))
@torch.no_grad()
def ragged_prompts(subject: Subject, side: str, garbage: bool) -> None:
    """Prompts of different length, padded at either side, go on in one batch."""
    rows = running(subject)
    rows.write(1, 3, 5, side=side, garbage=garbage)
    rows.write(1)
    rows.write(2, 1, 3, side=side, garbage=garbage)
    rows.write(1)
    rows.need_as_alone()


@check(_RAGGED, needs=_WRITES)
@torch.no_grad()
def pauses(subject: Subject) -> None:
    """A row may read nothing in a step."""
    rows = running(subject)
    for lengths in ((1, 0, 2), (1, 1, 0), (0, 2, 1)):
        rows.write(*lengths)
    rows.need_as_alone()


@check(_STATE, needs=_WRITES)
@torch.no_grad()
def selected_rows(subject: Subject) -> None:
    """Rows that are reordered, repeated or dropped go on as if alone."""
    rows = running(subject)
    rows.write(3)
    for order in ([2, 0, 1], [1, 1, 0, 2], [3, 0]):
        rows.select(order)
        rows.write(2)
        rows.write(1)
    rows.need_as_alone()


@check(_STATE, needs=_WRITES, left=((1, 0), (0, 0)))
@torch.no_grad()
def without_the_longest(subject: Subject, left: Sequence[int]) -> None:
    """Rows go on when the longest row is dropped."""
    rows = running(subject)
    rows.write(1, 3, 7)
    rows.select(list(left))
    rows.write(1)
    rows.write(2)
    rows.need_as_alone()


@check(_STATE, needs=_WRITES)
@torch.no_grad()
def forks(subject: Subject) -> None:
    """A step leaves the cache as it was from which its rows were selected."""
    rows = running(subject)
    rows.write(1, 2, 3)
    before = rows.cache, rows.rows
    rows.select([0, 1, 2])
    rows.write(2)
    rows.cache, rows.rows = before
    rows.write(1)
    rows.need_as_alone()


@check(_ROWS, needs=_WRITES)
@torch.no_grad()
def beams(subject: Subject) -> None:
    """The hypotheses of a beam, which share the memory of their sentence, go on as if alone."""
    rows = running(subject, lengths=(4, 2))
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
    rows.need_as_alone()


@check(_ROWS, needs=_WRITES)
@torch.no_grad()
def ragged_beams(subject: Subject) -> None:
    """A beam may begin before the first step, and its hypotheses have different lengths."""
    rows = running(subject, lengths=(4, 2))
    rows.select([[0, 0], [1, 1]])
    rows.write(1, 4, 2, 3)
    rows.write(1)
    rows.select([[3, 3], [0, 0]])  # without the longest
    rows.write(2)
    rows.need_as_alone()


@check(_FIRST, needs=_WRITES, started=(0, 1, 6))
@torch.no_grad()
def joins(subject: Subject, started: int) -> None:
    """A row joins a running batch, fresh or after some tokens."""
    rows, newcomer = running(subject), running(subject, lengths=(7,))
    for _ in range(4):
        rows.write(1)
    if started:
        newcomer.write(started)
    rows.join(newcomer)
    rows.write(1)
    rows.write(2)
    rows.select([3, 1])
    rows.write(1)
    rows.need_as_alone()


@check(_FIRST, needs=_WRITES)
@torch.no_grad()
def joins_a_fresh_row(subject: Subject) -> None:
    """A running batch joins a row that has read nothing."""
    rows, fresh = running(subject), running(subject, lengths=(1,))
    rows.write(4)
    fresh.join(rows)
    fresh.write(3, 1, 1, 2)
    fresh.write(1)
    fresh.need_as_alone()


@check(_FIRST, needs=_WRITES)
@torch.no_grad()
def joins_beams(subject: Subject) -> None:
    """Beams of equal width join."""
    rows, others = running(subject, lengths=(4,)), running(subject, lengths=(2, 6))
    rows.write(3)
    rows.select([[0, 0]])
    others.select([[0, 0], [1, 1]])
    others.write(1)
    rows.join(others)
    rows.write(1)
    rows.select([[5, 4], [1, 0]])
    rows.write(1)
    rows.need_as_alone()
