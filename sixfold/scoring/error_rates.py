"""Error rates: the number of edits that turn a hypothesis into its reference, in per cent.

If a text has several references, the nearest one is used. Each rate is a ratio of two sums over the texts. Functions
such as `word_errors` return the two summands of each text. From these, `sixfold.scoring.significance` computes the
score of any resample of the texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

Hypotheses = Sequence[str]
References = Sequence[Sequence[str]]  # for each hypothesis, all its references
Items = Sequence[Hashable]
PerText = Sequence[float]  # one text's summands in the sums of a metric; or the sums over several texts


def check(hypotheses: Hypotheses, references: References) -> None:
    """Raise a ValueError unless each hypothesis has a reference."""
    if isinstance(hypotheses, str):
        raise ValueError("the hypotheses must be a list of texts, got one text")
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses, but references for {len(references)}")
    if not hypotheses:
        raise ValueError("there is nothing to score: no hypotheses")
    for number, own in enumerate(references, 1):
        if isinstance(own, str):
            raise ValueError(f"references of hypothesis {number} must be a list or tuple of texts, got one text")
        if not own:
            raise ValueError(f"hypothesis {number} has no reference")


def per_cent(rows: Sequence[PerText]) -> float:
    """100 · Σ first / Σ second. The sums are exact, so that the order of the texts makes no difference."""
    part, total = (math.fsum(column) for column in zip(*rows, strict=True))
    return 100 * part / max(total, 1)


def edit_distance(left: Items, right: Items) -> int:
    """The least number of insertions, deletions and substitutions (Levenshtein).

        d(i, j) = min(d(i−1, j) + 1,  d(i, j−1) + 1,  d(i−1, j−1) + [left_i ≠ right_j])

    Neighbours in d differ by −1, 0 or 1. So a column d(·, j) is stored in two large integers: bit i of `up` is set if d
    rises from i−1 to i, bit i of `down` if it falls. A dozen operations on the two integers compute the next column
    (Myers 1999, in the form of Hyyrö 2003).
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
    """The length of the longest common subsequence: items that occur in both in the same order.

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
    """100 · edits of words / words of the references. Words are separated by spaces."""
    return {"word_error_rate": per_cent(word_errors(hypotheses, references))}


def symbol_error_rate(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """100 · edits of characters / characters of the references. Spaces are characters, too."""
    return {"symbol_error_rate": per_cent(symbol_errors(hypotheses, references))}


def exact_match(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """The share of hypotheses, in per cent, that are equal to one of their references."""
    return {"exact_match": per_cent(matches(hypotheses, references))}


def pronunciation(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """Three rates: words whose phones match no reference, words whose phones or stress match none, and wrong phones.

    A pronunciation is phones separated by spaces. Stress is the digit at the end of a vowel: AH0, IY1. The phone error
    rate ignores stress and compares with the nearest reference.
    """
    return {
        "pronunciation": per_cent(mispronounced(hypotheses, references)),
        "pronunciation_stressed": per_cent(_wrong(hypotheses, references, phones)),
        "phone_error_rate": per_cent(_errors(hypotheses, references, without_stress)),
    }


def word_errors(hypotheses: Hypotheses, references: References) -> list[PerText]:
    """For each text: the number of word edits, and the number of words of the nearest reference."""
    return _errors(hypotheses, references, str.split)


def symbol_errors(hypotheses: Hypotheses, references: References) -> list[PerText]:
    """For each text: the number of character edits, and the number of characters of the nearest reference."""
    return _errors(hypotheses, references, tuple)


def matches(hypotheses: Hypotheses, references: References) -> list[PerText]:
    """For each text: whether it equals a reference (1 or 0), and the number of texts, 1."""
    check(hypotheses, references)
    return [(hypothesis in own, 1) for hypothesis, own in zip(hypotheses, references, strict=True)]


def mispronounced(hypotheses: Hypotheses, references: References) -> list[PerText]:
    """For each word: whether its phones match no reference (1 or 0), and the number of words, 1."""
    return _wrong(hypotheses, references, without_stress)


def phones(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def without_stress(text: str) -> tuple[str, ...]:
    """ "HH AH0 L OW1" → HH AH L OW"""
    return tuple(phone.rstrip("0123456789") for phone in text.split())


def _wrong(hypotheses: Hypotheses, references: References, split: Callable[[str], Items]) -> list[PerText]:
    check(hypotheses, references)
    pairs = zip(hypotheses, references, strict=True)
    return [(split(hypothesis) not in map(split, own), 1) for hypothesis, own in pairs]


def _errors(hypotheses: Hypotheses, references: References, split: Callable[[str], Items]) -> list[PerText]:
    """For each text: the number of edits, and the number of items of the nearest reference (the first, if tied)."""
    check(hypotheses, references)
    rows: list[PerText] = []
    for hypothesis, own in zip(hypotheses, references, strict=True):
        items = split(hypothesis)
        scored = [(edit_distance(items, reference), len(reference)) for reference in map(split, own)]
        rows.append(min(scored, key=lambda pair: pair[0]))
    return rows
