"""ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004), the usual metrics of summaries: F1 in per cent, the mean over the texts.

For a hypothesis and a reference, as lists of words,

    ROUGE-n    matches = common n-grams, each counted as often as in the text where it is rarer
               P = matches / n-grams of the hypothesis        R = matches / n-grams of the reference
    ROUGE-L    matches = length of their longest common subsequence, over the complete text, across line breaks
               P = matches / words of the hypothesis          R = matches / words of the reference

    F1 = 2 P R / (P + R), and 0 where nothing matches, as in an empty text

If a text has several references, each metric uses the one with the best F1. The text is lower-cased; a word is a
run of letters, combining marks and digits of any script; everything else (punctuation, "_", "'") separates words.
Nothing is stemmed. A script without spaces yields one word per run: use chrF for it.

On text whose letters are all a–z this is 100 times the `fmeasure` of rouge1, rouge2 and rougeL in Google's package
rouge_score with use_stemmer=False, averaged over the texts. That package treats every other letter as a separator (über
becomes "ber"), so on other text the numbers differ.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import cache

from sixfold import __version__
from sixfold.scoring.error_rates import Hypotheses, PerText, References, check, common_length, per_cent

WordList = list[str]


def rouge1(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """F1 of words."""
    return {"rouge1": per_cent(rouge1_each(hypotheses, references))}


def rouge2(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """F1 of pairs of neighbouring words."""
    return {"rouge2": per_cent(rouge2_each(hypotheses, references))}


def rouge_l(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """F1 of the longest common subsequence."""
    return {"rougeL": per_cent(rouge_l_each(hypotheses, references))}


def rouge1_each(hypotheses: Hypotheses, references: References) -> list[PerText]:
    """For each text: its F1 from 0 to 1, and the number of texts, 1."""
    return _each(hypotheses, references, lambda hypothesis, reference: _n_grams(hypothesis, reference, 1))


def rouge2_each(hypotheses: Hypotheses, references: References) -> list[PerText]:
    return _each(hypotheses, references, lambda hypothesis, reference: _n_grams(hypothesis, reference, 2))


def rouge_l_each(hypotheses: Hypotheses, references: References) -> list[PerText]:
    return _each(hypotheses, references, lambda left, right: _f1(common_length(left, right), len(left), len(right)))


def rouge_signature(references: References) -> str:
    counts = {len(several) for several in references}
    number = counts.pop() if len(counts) == 1 else "var"
    return f"nrefs:{number}|case:lc|tok:unicode-words|stem:no|score:f1-mean|version:sixfold-{__version__}"


def words(text: str) -> WordList:
    """ "Grüß Gott, 3×!" → grüß gott 3"""
    return "".join(_letter_or_space(character) for character in text.lower()).split()


@cache
def _letter_or_space(character: str) -> str:
    return character if character.isalnum() or unicodedata.category(character).startswith("M") else " "


def _each(hypotheses: Hypotheses, references: References, f1: Callable[[WordList, WordList], float]) -> list[PerText]:
    check(hypotheses, references)
    rows: list[PerText] = []
    for hypothesis, several in zip(hypotheses, references, strict=True):
        split = words(hypothesis)
        rows.append((max(f1(split, words(reference)) for reference in several), 1))
    return rows


def _n_grams(hypothesis: WordList, reference: WordList, n: int) -> float:
    left, right = (Counter(zip(*(text[i:] for i in range(n)), strict=False)) for text in (hypothesis, reference))
    return _f1((left & right).total(), left.total(), right.total())


def _f1(matches: int, left: int, right: int) -> float:
    """2 P R / (P + R) = 2 matches / (left + right)"""
    return 2 * matches / (left + right) if matches else 0.0
