"""Which pieces a vocabulary holds: what training a tokenizer is.

The same texts in the same order give the same vocabulary. bpe and unigram look at no more than a million
texts (or fifty million characters), taken evenly from the whole; the other kinds count all of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import models, trainers

from sixfold.core.ids import CONTROLS
from sixfold.text.tokenizer import BYTES, KINDS, Tokenizer, Vocabulary, checked, splitter
from sixfold.text.unigram import train_unigram

USUAL_SIZE = 8000
_LEAST_BYTES = len(CONTROLS) + len(BYTES)
_MOST_TEXTS, _MOST_CHARACTERS = 1_000_000, 50_000_000
_MANY_CHARACTERS = 5000  # where a text has so many different ones, those seen once are not worth an id
_GOLDEN, _WHOLE = 0x9E3779B97F4A7C15, 1 << 64  # the golden ratio as a share of the whole


def train_tokenizer(kind: str, texts: Iterable[str], size: int | None = None) -> Tokenizer:
    """A tokenizer for texts like these, with at most `size` ids."""
    if kind not in KINDS:
        raise ValueError(f"there is no tokenizer {kind!r}; there are {', '.join(KINDS)}")
    return Tokenizer(kind, find_vocabulary(kind, (checked(text) for text in texts), size))


def find_vocabulary(kind: str, texts: Iterable[str], size: int | None) -> Vocabulary:
    """The vocabulary of a tokenizer with at most `size` ids, or as many as there is reason for."""
    _check_size(kind, size)
    if kind == "bytes":
        return Vocabulary(BYTES)
    texts = _some(texts, kind)
    if kind == "characters":
        return _characters(texts, size)
    if kind in ("words", "symbols"):
        return _between_spaces(kind, texts, size)
    budget = (USUAL_SIZE if size is None else size) - len(CONTROLS)
    find = _pairs if kind == "bpe" else _likely_parts
    return find(evenly(texts, _MOST_TEXTS, _MOST_CHARACTERS), budget)


def evenly(texts: Iterable[str], most_texts: int, most_characters: int) -> list[str]:
    """At most so many texts, from all over. Never every n-th one, as source and target may take turns.

    Text n stands at n·φ modulo 1, with φ the golden ratio: that fills the interval evenly however n is stepped.
    Those below a limit are kept, and the limit is halved whenever they become too many.
    """
    kept: dict[int, str] = {}  # by place
    limit, characters = _WHOLE, 0
    for number, text in enumerate(texts):
        rank = number * _GOLDEN % _WHOLE
        if rank < limit:
            kept[rank] = text
            characters += len(text)
        while len(kept) > 1 and (len(kept) > most_texts or characters > most_characters):
            limit //= 2
            kept = {rank: text for rank, text in kept.items() if rank < limit}
            characters = sum(map(len, kept.values()))
    return [*kept.values()]


def _check_size(kind: str, size: int | None) -> None:
    least = len(CONTROLS) + 1 if kind in ("words", "symbols") else _LEAST_BYTES
    if size is not None and size < least:
        why = "one more" if kind in ("words", "symbols") else f"{len(BYTES)} bytes"
        raise ValueError(
            f"a vocabulary of {size} is too small: {kind} needs at least {least} ids "
            f"({len(CONTROLS)} that control the model and {why})"
        )


def _some(texts: Iterable[str], kind: str) -> Iterator[str]:
    """The texts, if there is anything in them."""
    empty = True
    for text in texts:
        empty = empty and not text
        yield text
    if empty:
        raise ValueError(f"there is no text to find the vocabulary of a tokenizer of kind {kind} in")


def _characters(texts: Iterable[str], size: int | None) -> Vocabulary:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    least = 2 if size is None and len(counts) > _MANY_CHARACTERS else 1
    seen = [char for char in _by_count(counts) if counts[char] >= least and not char.isascii()]
    budget = len(seen) if size is None else size - _LEAST_BYTES
    return Vocabulary(BYTES + ["".join(BYTES[byte] for byte in char.encode()) for char in seen[:budget]])


def _between_spaces(kind: str, texts: Iterable[str], size: int | None) -> Vocabulary:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.split(" "))
    del counts[""]
    budget = len(counts) if size is None else size - len(CONTROLS)
    if kind == "symbols" and len(counts) > budget:
        raise ValueError(
            f"a vocabulary of {size} is too small: there are {len(counts)} different symbols, which with "
            f"{len(CONTROLS)} ids that control the model makes {len(counts) + len(CONTROLS)}"
        )
    return Vocabulary(_by_count(counts)[:budget])


def _by_count(counts: Counter[str]) -> list[str]:
    """The most frequent first; of equals, the first in the order of Unicode."""
    return sorted(counts, key=lambda entry: (-counts[entry], entry))


def _pairs(sample: list[str], budget: int) -> Vocabulary:
    """Byte-pair encoding: as long as there is room, the most frequent pair of neighbours becomes a piece."""
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = splitter("bpe")
    trainer = trainers.BpeTrainer(vocab_size=budget, min_frequency=2, initial_alphabet=BYTES, show_progress=False)
    rust.train_from_iterator(sample, trainer, length=len(sample))
    merges = [(left, right) for left, right in json.loads(rust.to_str())["model"]["merges"]]
    pieces = dict.fromkeys([*BYTES, *(left + right for left, right in merges)])  # two pairs may make the same piece
    return Vocabulary([*pieces], merges)


def _likely_parts(sample: list[str], budget: int) -> Vocabulary:
    """A unigram model: of all frequent parts of words, those that the likelihood of the text needs most."""
    cut, counts = splitter("unigram"), Counter[str]()
    for text in sample:
        counts.update(word for word, _ in cut.pre_tokenize_str(text))
    del sample  # what follows needs the memory
    byte_of = {letter: byte for byte, letter in enumerate(BYTES)}
    words = {bytes(byte_of[letter] for letter in word): counts[word] for word in _by_count(counts)}
    found = train_unigram(words, budget)
    return Vocabulary(["".join(BYTES[byte] for byte in piece) for piece in found], scores=[*found.values()])
