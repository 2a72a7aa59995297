"""Error rates: how many edits lead from what was said to what is right.

All are in per cent. Where several references are given, the nearest counts. Each rate is a ratio of two sums over the
texts; what a text adds to them is a row of counts, so that a part of the texts, or some of them twice, can be scored
without looking at them again (see `sixfold.scoring.significance`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

Hypotheses = Sequence[str]
References = Sequence[Sequence[str]]  # for each hypothesis, all that would be right
Items = Sequence[Hashable]
PerText = Sequence[float]  # what one text, or several together, add to a metric's sums


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
    part, whole = (math.fsum(column) for column in zip(*rows, strict=True))
    return 100 * part / max(whole, 1)


def edit_distance(left: Items, right: Items) -> int:
    """The least number of insertions, deletions and substitutions (Levenshtein).

        d(i, j) = min(d(i−1, j) + 1,  d(i, j−1) + 1,  d(i−1, j−1) + [left_i ≠ right_j])

    Neighbours in d differ by −1, 0 or 1. So a whole line d(·, j) is two large numbers, with a bit for each i: whether
    it goes up there from i−1 to i, or down; the next line follows by a dozen operations on them (Myers 1999, in the
    form of Hyyrö 2003).
    """
    if not left:
        return len(right)
    where = _places(left)
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

    A line of c is one large number: a bit is 0 where c goes up from i−1 to i (Hyyrö 2004).
    """
    where, every = _places(left), (1 << len(left)) - 1
    level = every
    for item in right:
        same = level & where.get(item, 0)
        level = ((level + same) | (level - same)) & every
    return len(left) - level.bit_count()


def _places(items: Items) -> dict[Hashable, int]:
    """For each item a number that has a bit wherever it stands."""
    where: dict[Hashable, int] = {}
    for place, item in enumerate(items):
        where[item] = where.get(item, 0) | 1 << place
    return where


def word_error_rate(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """Edits of words (whatever stands between spaces), over the words of the references."""
    return {"word_error_rate": per_cent(word_errors(hypotheses, references))}


def symbol_error_rate(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """Edits of characters, spaces among them, over the characters of the references."""
    return {"symbol_error_rate": per_cent(symbol_errors(hypotheses, references))}


def exact_match(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """How many hypotheses are one of their references, to the letter."""
    return {"exact_match": per_cent(matches(hypotheses, references))}


def pronunciation(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """How many words are pronounced as no reference says; then the same with stress, and edits of phones.

    A pronunciation is phones with spaces between. Stress is the digit at a vowel's end: AH0, IY1. Edits
    are counted without stress, to the nearest reference, over its phones.
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
    """Of each text: whether it is right, and 1."""
    check(hypotheses, references)
    return [(hypothesis in several, 1) for hypothesis, several in zip(hypotheses, references, strict=True)]


def mispronounced(hypotheses: Hypotheses, references: References) -> list[PerText]:
    """Of each word: whether its phones are wrong, and 1."""
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
    """Edits and items of the nearest reference; the first, if several are equally near."""
    check(hypotheses, references)
    rows: list[PerText] = []
    for hypothesis, several in zip(hypotheses, references, strict=True):
        said = split(hypothesis)
        found = [(edit_distance(said, right), len(right)) for right in map(split, several)]
        rows.append(min(found, key=lambda pair: pair[0]))
    return rows
