"""Statistics of decoded outputs that show what is wrong with them: their length, repetitions, copies, empty outputs.

Validation adds them to its record in the log, and `sixfold.doctor` reads them there. Old logs lack them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sixfold.text.preparation import Reference

PREFIX = "output_"  # of their names in a record
LENGTH, REPEATING, COPIED, EMPTY = (f"{PREFIX}{name}" for name in ("length", "repeating", "copied", "empty"))
NGRAM = 4  # words: a shorter phrase may well occur twice in a good sentence
_DIGITS = 4


def output_statistics(outputs: Sequence[str], references: Sequence[Reference]) -> dict[str, float]:
    """Statistics of outputs for the sources of these references; empty if there are none.

    output_length      characters of all outputs per character of the references nearest in length
    output_repeating   share of outputs with more repeated n-grams than each of their references
    output_copied      share of outputs that equal their source, although no reference does
    output_empty       share of outputs without text
    """
    if not outputs:
        return {}
    pairs = [*zip((output.strip() for output in outputs), references, strict=True)]
    expected = sum(_nearest_length(output, reference.targets) for output, reference in pairs)
    shares = {
        LENGTH: sum(len(output) for output, _ in pairs) / max(expected, 1),
        REPEATING: sum(_repeats_too_much(output, reference) for output, reference in pairs) / len(pairs),
        COPIED: sum(_is_copy(output, reference) for output, reference in pairs) / len(pairs),
        EMPTY: sum(not output for output, _ in pairs) / len(pairs),
    }
    return {name: round(value, _DIGITS) for name, value in shares.items()}


def repeated_ngrams(text: str) -> int:
    """The number of n-grams that occurred before in this text: of words, or of characters if it has no spaces."""
    words: Sequence[str] = text.split()
    words = text if len(words) == 1 else words
    ngrams = [tuple(words[start : start + NGRAM]) for start in range(len(words) - NGRAM + 1)]
    return len(ngrams) - len(set(ngrams))


def _nearest_length(output: str, targets: Sequence[str]) -> int:
    return min((len(target.strip()) for target in targets), key=lambda length: (abs(length - len(output)), length))


def _repeats_too_much(output: str, reference: Reference) -> bool:
    found = repeated_ngrams(output)
    return found > 0 and all(found > repeated_ngrams(target) for target in reference.targets)


def _is_copy(output: str, reference: Reference) -> bool:
    return output == reference.source.strip() and output not in {target.strip() for target in reference.targets}
