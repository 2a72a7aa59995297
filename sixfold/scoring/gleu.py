"""GLEU of "Google's Neural Machine Translation System" (arXiv 1609.08144): a score of single texts, for rewards.

    n-grams of 1 to 4 items, each counted as often as in the text where it is rarer = matches
    GLEU = min(matches / n-grams of the hypothesis, matches / n-grams of the reference)

It lies between 0 and 1, and is 1 only for equal texts. Hypothesis and reference may be exchanged. BLEU is for many
texts together: a single text often has no 4-gram in common with its reference, and then its BLEU is 0.

The metric `gleu` is the mean over the texts, in per cent, each with its best reference. Its items are the words and
signs into which sacreBLEU's tokenizer 13a splits a text. In a reward (tasks/reward.py), they are the model's pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

from sixfold import __version__
from sixfold.scoring.error_rates import Hypotheses, Items, PerText, References, check, per_cent

ORDERS = (1, 2, 3, 4)


def gleu(hypotheses: Hypotheses, references: References) -> dict[str, float]:
    """The mean over the texts."""
    return {"gleu": per_cent(gleu_each(hypotheses, references))}


def gleu_each(hypotheses: Hypotheses, references: References) -> list[PerText]:
    """For each text: its GLEU from 0 to 1, and the number of texts, 1."""
    check(hypotheses, references)
    split = _splitter()
    rows: list[PerText] = []
    for hypothesis, several in zip(hypotheses, references, strict=True):
        items = split(hypothesis).split()
        rows.append((max(gleu_of_items(items, split(reference).split()) for reference in several), 1))
    return rows


def gleu_signature(references: References) -> str:
    counts = {len(several) for several in references}
    number = counts.pop() if len(counts) == 1 else "var"
    return f"nrefs:{number}|case:mixed|tok:13a|order:4|score:mean|version:sixfold-{__version__}"


def gleu_of_items(hypothesis: Items, reference: Items) -> float:
    """GLEU of one hypothesis, from 0 to 1."""
    left, right = _n_grams(hypothesis), _n_grams(reference)
    matches, most = (left & right).total(), max(left.total(), right.total())
    return matches / most if most else 1.0  # both are empty


def _n_grams(items: Items) -> Counter[tuple[object, ...]]:
    return Counter(ngram for n in ORDERS for ngram in zip(*(items[i:] for i in range(n)), strict=False))


@cache
def _splitter() -> Callable[[str], str]:
    """Separates words and signs by spaces. Imported here because the import is slow."""
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    return Tokenizer13a()
