"""Compares the program in an export's README with the run, on lines where the run's settings matter.

Most lines give the same output under any settings. So lines are chosen from a pool: first some whose output reaches the
length limit, some where beam search and greedy search differ, and some that are long.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from sixfold.api.load import OpenedRun
from sixfold.config.schema import change_decoding
from sixfold.foreign.agreement import AsUsed, decoded
from sixfold.foreign.programs import run_program

POOL = 4  # lines of the pool for each line that is compared
_SEARCH = {"sample": False, "n_best": 1}  # sampled texts can't be compared: the random numbers differ


class DecodedLine(NamedTuple):
    """A text, and the run's output for it."""

    text: str
    written: str
    tokens: int  # of the output
    cut: bool  # the output reaches the length limit
    searched: bool  # greedy search gives another output


def choose_lines(opened: OpenedRun, pool: Sequence[str], number: int) -> list[DecodedLine]:
    """`number` lines of the pool, in its order: up to a quarter for each of the three reasons, then others."""
    decoding = opened.config.decoding
    if decoding.too_long == "refuse":
        pool = [text for text in pool if _length(opened, text) <= decoding.max_source]
    if decoding.sample:
        decoding = change_decoding(decoding, _SEARCH)
    found = decoded(opened.model, opened.tokenizers, pool, decoding)
    greedy = found
    if decoding.beam_size > 1:
        alone = {"beam_size": 1, "n_best": 1, "beam_groups": 1}
        greedy = decoded(opened.model, opened.tokenizers, pool, change_decoding(decoding, alone))
    pairs = zip(pool, found, greedy, strict=True)
    lines = [
        DecodedLine(text, mine.text, len(mine.tokens), not mine.ended, mine.text != other.text)
        for text, mine, other in pairs
    ]
    numbers = range(len(lines))
    reasons = (
        (i for i in numbers if lines[i].cut),
        (i for i in numbers if lines[i].searched),
        sorted(numbers, key=lambda i: -len(lines[i].text)),
    )
    first = [i for reason in reasons for i in islice(reason, max(1, number // 4))]
    return [lines[i] for i in sorted(list(dict.fromkeys([*first, *numbers]))[:number])]


def _length(opened: OpenedRun, text: str) -> int:
    only = not opened.model.reads_source
    return len((opened.tokenizers.target if only else opened.tokenizers.source).encode(text))


def compare_as_used(opened: OpenedRun, lines: Sequence[DecodedLine], to: str, folder: Path) -> AsUsed:
    """Run the README's program on these lines, and count equal outputs."""
    drawn = opened.config.decoding.sample
    search = {"ctranslate2": {"sampling_topk": 1, "num_hypotheses": 1}, "torch": _SEARCH}[to] if drawn else {}
    texts = run_program(to, opened.model.reads_source, folder, [line.text for line in lines], **search)
    same = [line.written == found[0] for line, found in zip(lines, texts, strict=True)]
    return AsUsed(
        same=sum(same),
        cut=sum(line.cut for line in lines),
        cut_same=sum(line.cut and equal for line, equal in zip(lines, same, strict=True)),
        searched=sum(line.searched for line in lines),
        searched_same=sum(line.searched and equal for line, equal in zip(lines, same, strict=True)),
        drawn=drawn,
    )
