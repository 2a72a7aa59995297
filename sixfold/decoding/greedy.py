"""Greedy search: always the likeliest next word.

Letters: B rows, L tokens, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sixfold.call import BOS, EOS, PAD
from sixfold.decoding.step import State, StepFunction

LEAVE = 0.25  # share of rows that are done, at which they leave: each leaving copies the states of those that stay


class Hypothesis(NamedTuple):
    """What a search found for a row."""

    tokens: tuple[int, ...]  # without BOS and EOS
    score: float  # the model's own log-probability of the tokens and EOS
    ended: bool = True  # EOS was chosen; False: the limit came first, and the score is that of ending there


class _Row:
    """One row on its way."""

    def __init__(self, number: int, limit: int):
        self.number, self.limit = number, limit
        self.tokens: list[int] = []
        self.score = 0.0
        self.found: Hypothesis | None = None

    def read(self, word: int, log_p: float, log_p_end: float) -> None:
        """Take the word that was chosen, unless this is the end."""
        if word == EOS or len(self.tokens) == self.limit:
            self.found = Hypothesis(tuple(self.tokens), self.score + log_p_end, ended=word == EOS)
            return
        self.tokens.append(word)
        self.score += log_p


def greedy(
    step: StepFunction,
    state: State,
    first: Tensor,
    limits: Sequence[int],
    never: Sequence[int] = (PAD, BOS),
    leave: float = LEAVE,
) -> list[Hypothesis]:
    """Go on from `first` (B, L) until each row has said EOS, or has as many tokens as its limit.

    Words in `never` are not chosen; the score is that of the model, which knows nothing of this. Rows
    that are done leave the batch as soon as their share is at least `leave`.
    """
    if first.shape[0] != len(limits):
        raise ValueError(f"{first.shape[0]} rows need as many limits, got {len(limits)}")
    if min(limits, default=0) < 0:
        raise ValueError(f"a limit must be at least 0 tokens, got {min(limits)}")
    rows = everybody = [_Row(number, limit) for number, limit in enumerate(limits)]
    ids, forbidden = first, torch.tensor(never, dtype=torch.long, device=first.device)
    while any(row.found is None for row in rows):
        stay = [place for place, row in enumerate(rows) if row.found is None]
        if len(rows) - len(stay) >= max(leave * len(rows), 1):
            places = torch.tensor(stay, device=ids.device)
            rows, ids, state = [rows[place] for place in stay], ids[places], state.select(places)
        scores, log_z, state, _ = step(ids, state)
        ids = scores.index_fill(1, forbidden, -torch.inf).argmax(1, keepdim=True)
        log_p = torch.cat([scores.gather(1, ids), scores[:, EOS, None]], 1) - log_z[:, None]
        for row, word, (log_p_word, log_p_end) in zip(rows, ids[:, 0].tolist(), log_p.tolist(), strict=True):
            if row.found is None:
                row.read(word, log_p_word, log_p_end)
    return [row.found for row in everybody if row.found is not None]
