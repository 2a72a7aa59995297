"""Error rates: the number of edits that turn a hypothesis into its reference, in per cent.

Of several references, the nearest counts. Each rate is a ratio of two sums over the texts. The statistics of a text are
its summands, so that any resample of the texts can be scored without reading them again (see
`sixfold.scoring.significance`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

Hypotheses = Sequence[str]
References = Sequence[Sequence[str]]  # for each hypothesis, all its references
Items = Sequence[Hashable]
PerText = Sequence[float]  # the summands of one text, or of several together, in a metric's sums


def check(hypotheses: Hypotheses, references: References) -> None:
    """Raise a ValueError unless each hypothesis has a reference."""
    if isinstance(hypotheses, str):
        raise ValueError("the hypotheses must be a list of texts, got one text")
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses, but references for {len(references)}")
    if not hypotheses:
        raise ValueError("there is nothing to score: no hypotheses")
    for number, several in enumerate(references, 1):
        if isinstance(several, str):
            raise ValueError(f"references of hypothesis {number} must be a list or tuple of texts, got one text")
        if not several:
            raise ValueError(f"hypothesis {number} has no reference")


def per_cent(rows: Sequence[PerText]) -> float:
    """100 · Σ first / Σ second. The sums are exact, so that the order of the texts makes no difference."""
    part, total = (math.fsum(column) for column in zip(*rows, strict=True))
    return 100 * part / max(total, 1)


def edit_distance(left: Items, right: Items) -> int:
    """The least number of insertions, deletions and substitutions (Levenshtein).

        d(i, j) = min(d(i−1, j) + 1,  d(i, j−1) + 1,  d(i−1, j−1) + [left_i ≠ right_j])

    Neighbours in d differ by −1, 0 or 1. So a column d(·, j) is stored in two large integers with one bit for each i:
    does d rise from i−1 to i, does it fall? The next column follows by a dozen operations on them (Myers 1999, in the
    form of Hyyrö 2003).
    """
    if not left:
        return len(right)
    where = _bit_masks(left)
    every, last = (1 << len(left)) - 1, 1 << (len(left) - 1)
    up, down, distance = every, 0, len(left)  # d(i, 0) = i
    for item in right:
        same = where.get(item, 0)
        level = same | down
        cheaper = (((same & up) + up) ^ up) | same
        up_across, down_across = (down | ~(cheaper | up)) & every, up & cheaper  # d(i, j) against d(i, j−1)
        distance += bool(up_across & last) - bool(down_across & last)
        up_across, down_across = (up_across << 1 | 1) & every, (down_across << 1) & every
        up, down = (down_across | ~(level | up_across)) & every, up_across & level
    return distance


def common_length(left: Items, right: Items) -> int:
    """The length of the longest common subsequence: items in the same order, with others in between.

        c(i, j) = c(i−1, j−1) + 1 if left_i = right_j,  else max(c(i−1, j), c(i, j−1))

    A column of c is one large integer: bit i is 0 where c rises from i−1 to i (Hyyrö 2004).
    """
    where, every = _bit_masks(left), (1 << len(left)) - 1
    level = every
    for item in right:
        same = level & where.get(item, 0)
        level = ((level + same) | (level - same)) & every
    return len(left) - level.bit_count()


def _bit_masks(items: Items) -> dict[Hashable, int]:
    """For each item the integer whose bit i is set if items[i] is that item."""
    where: dict[Hashable, int] = {}
    for index, item in enumerate(items):
        where[item] = where.get(item, 0) | 1 << index
    return where


def word_error_rate(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """Edits of words (separated by spaces), over the words of the references."""
    return {"word_error_rate": per_cent(word_errors(hypotheses, references))}


def symbol_error_rate(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """Edits of characters, including spaces, over the characters of the references."""
    return {"symbol_error_rate": per_cent(symbol_errors(hypotheses, references))}


def exact_match(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """The share of hypotheses that are equal to one of their references."""
    return {"exact_match": per_cent(matches(hypotheses, references))}


def pronunciation(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """The share of words whose phones match no reference; the same with stress; and the phone error rate.

    A pronunciation is phones separated by spaces. Stress is the digit at the end of a vowel: AH0, IY1. The phone error
    rate ignores stress and compares with the nearest reference.
    """
    return {
        "pronunciation": per_cent(mispronounced(hypotheses, references)),
        "pronunciation_stressed": per_cent(_wrong(hypotheses, references, phones)),
        "phone_error_rate": per_cent(_errors(hypotheses, references, without_stress)),
    }


def word_errors(hypotheses: Hypotheses, references: References) -> list[PerText]:
    """Of each text: edits of words, words of the nearest reference."""
    return _errors(hypotheses, references, str.split)


def symbol_errors(hypotheses: Hypotheses, references: References) -> list[PerText]:
    """Of each text: edits of characters, characters of the nearest reference."""
    return _errors(hypotheses, references, tuple)


def matches(hypotheses: Hypotheses, references: References) -> list[PerText]:
    """Of each text: 1 if it equals a reference, else 0; and 1."""
    check(hypotheses, references)
    return [(hypothesis in several, 1) for hypothesis, several in zip(hypotheses, references, strict=True)]


def mispronounced(hypotheses: Hypotheses, references: References) -> list[PerText]:
    """Of each word: 1 if its phones match no reference, else 0; and 1."""
    return _wrong(hypotheses, references, without_stress)


def phones(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def without_stress(text: str) -> tuple[str, ...]:
    """ "HH AH0 L OW1" → HH AH L OW"""
    return tuple(phone.rstrip("0123456789") for phone in text.split())


def _wrong(hypotheses: Hypotheses, references: References, split: Callable[[str], Items]) -> list[PerText]:
    check(hypotheses, references)
    pairs = zip(hypotheses, references, strict=True)
    return [(split(hypothesis) not in map(split, several), 1) for hypothesis, several in pairs]


def _errors(hypotheses: Hypotheses, references: References, split: Callable[[str], Items]) -> list[PerText]:
    """Of each text: edits and items of the nearest reference; of equally near ones, the first."""
    check(hypotheses, references)
    rows: list[PerText] = []
    for hypothesis, several in zip(hypotheses, references, strict=True):
        items = split(hypothesis)
        found = [(edit_distance(items, right), len(right)) for right in map(split, several)]
        rows.append(min(found, key=lambda pair: pair[0]))
    return rows
