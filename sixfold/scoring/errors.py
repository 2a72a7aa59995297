"""Error rates: how many edits lead from what was said to what is right.

All are in per cent. Where several references are given, the nearest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

Hypotheses = Sequence[str]
References = Sequence[Sequence[str]]  # for each hypothesis, all that would be right
Items = Sequence[Hashable]


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


def edit_distance(left: Items, right: Items) -> int:
    """The least number of insertions, deletions and substitutions (Levenshtein).

        d(i, j) = min(d(i−1, j) + 1,  d(i, j−1) + 1,  d(i−1, j−1) + [left_i ≠ right_j])

    One line of d at a time; what both have in common at the ends costs nothing and is left out.
    """
    left, right = _without_common_ends(left, right)
    line = list(range(len(right) + 1))
    for i, item in enumerate(left, 1):
        diagonal, line[0] = line[0], i
        for j, other in enumerate(right, 1):
            diagonal, line[j] = line[j], min(line[j] + 1, line[j - 1] + 1, diagonal + (item != other))
    return line[-1]


def _without_common_ends(left: Items, right: Items) -> tuple[Items, Items]:
    start, most = 0, min(len(left), len(right))
    while start < most and left[start] == right[start]:
        start += 1
    end = 0
    while end < most - start and left[-1 - end] == right[-1 - end]:
        end += 1
    return left[start : len(left) - end], right[start : len(right) - end]


def word_error_rate(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """Edits of words (whatever stands between spaces), over the words of the references."""
    check(hypotheses, references)
    return {"word_error_rate": _error_rate(hypotheses, references, str.split)}


def symbol_error_rate(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """Edits of characters, spaces among them, over the characters of the references."""
    check(hypotheses, references)
    return {"symbol_error_rate": _error_rate(hypotheses, references, tuple)}


def exact_match(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """How many hypotheses are one of their references, to the letter."""
    check(hypotheses, references)
    right = sum(hypothesis in several for hypothesis, several in zip(hypotheses, references, strict=True))
    return {"exact_match": 100 * right / len(hypotheses)}


def pronunciation(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """How many words are pronounced as no reference says; then the same with stress, and edits of phones.

    A pronunciation is phones with spaces between. Stress is the digit at a vowel's end: AH0, IY1. Edits
    are counted without stress, to the nearest reference, over its phones.
    """
    check(hypotheses, references)
    return {
        "pronunciation": _share_wrong(hypotheses, references, without_stress),
        "pronunciation_stressed": _share_wrong(hypotheses, references, phones),
        "phone_error_rate": _error_rate(hypotheses, references, without_stress),
    }


def phones(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def without_stress(text: str) -> tuple[str, ...]:
    """ "HH AH0 L OW1" → HH AH L OW"""
    return tuple(phone.rstrip("0123456789") for phone in text.split())


def _share_wrong(hypotheses: Hypotheses, references: References, split: Callable[[str], Items]) -> float:
    pairs = zip(hypotheses, references, strict=True)
    wrong = sum(split(hypothesis) not in map(split, several) for hypothesis, several in pairs)
    return 100 * wrong / len(hypotheses)


def _error_rate(hypotheses: Hypotheses, references: References, split: Callable[[str], Items]) -> float:
    """Edits over items of the nearest references, both summed over all texts."""
    edits = items = 0
    for hypothesis, several in zip(hypotheses, references, strict=True):
        said = split(hypothesis)
        distance, length = min(
            ((edit_distance(said, right), len(right)) for right in map(split, several)), key=lambda pair: pair[0]
        )
        edits, items = edits + distance, items + length
    return 100 * edits / max(items, 1)
