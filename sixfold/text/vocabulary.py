"""Trains tokenizers: chooses the pieces of a vocabulary.

The same texts in the same order give the same vocabulary. bpe and unigram use an even sample of at most a million texts
(or fifty million characters); the other kinds count all texts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import tokenizers
from tokenizers import models, trainers

from sixfold.config.plan import vocabulary as usual_vocabulary
from sixfold.core.ids import CONTROLS
from sixfold.text.tokenizer import BYTES, KINDS, Tokenizer, Vocabulary, checked, splitter
from sixfold.text.unigram import train_unigram

_BYTES_PER_WORD = 6  # of UTF-8 text, with the space: about right for European languages and for Chinese
_LEAST_BYTES = len(CONTROLS) + len(BYTES)
_MOST_TEXTS, _MOST_CHARACTERS = 1_000_000, 50_000_000
_MANY_CHARACTERS = 5000  # with more different characters, those that occur once get no id
_GOLDEN, _MODULUS = 0x9E3779B97F4A7C15, 1 << 64  # the golden ratio's fraction as a 64-bit integer, and 2^64


def train_tokenizer(kind: str, texts: Iterable[str], size: int | None = None) -> Tokenizer:
    """A tokenizer for texts like these, with at most `size` ids."""
    trainer = TokenizerTrainer(kind, size)
    trainer.update(texts)
    return trainer.finish()


def default_size(number: int) -> int:
    """The default vocabulary of bpe and unigram for a text of this number of bytes."""
    return usual_vocabulary(number // _BYTES_PER_WORD)


class TokenizerTrainer:
    """Trains a tokenizer on texts that come in portions, so that one pass over a corpus can train several."""

    def __init__(self, kind: str, size: int | None = None):
        if kind not in KINDS:
            raise ValueError(f"there is no tokenizer {kind!r}; there are {', '.join(KINDS)}")
        _check_size(kind, size)
        self.kind, self.size = kind, size
        self._empty = True
        self._statistics = _statistics(kind)

    def update(self, texts: Iterable[str]) -> None:
        """Add texts."""
        self._statistics.update(self._noted(texts))

    def finish(self) -> Tokenizer:
        """The tokenizer, with at most `size` ids, or the default number of its kind."""
        if self._empty and self.kind != "bytes":
            raise ValueError(f"there is no text to train a tokenizer of kind {self.kind} on")
        return Tokenizer(self.kind, self._statistics.vocabulary(self.size))

    def _noted(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            self._empty = self._empty and not text
            yield checked(text)


class _Statistics(Protocol):
    """The statistics of texts from which a kind of tokenizer is trained."""

    def update(self, texts: Iterable[str]) -> None: ...
    def vocabulary(self, size: int | None) -> Vocabulary: ...


def _statistics(kind: str) -> _Statistics:
    if kind == "bytes":
        return _NoStatistics()
    if kind == "characters":
        return _CharacterCounts()
    if kind in ("words", "symbols"):
        return _WordCounts(kind)
    return _Sample(_pairs if kind == "bpe" else _likely_parts)


class _NoStatistics:
    """For bytes: the vocabulary does not depend on the texts."""

    def update(self, texts: Iterable[str]) -> None:
        pass

    def vocabulary(self, size: int | None) -> Vocabulary:
        return Vocabulary(BYTES)


class _CharacterCounts:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def update(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._counts.update(text)

    def vocabulary(self, size: int | None) -> Vocabulary:
        counts = self._counts
        least = 2 if size is None and len(counts) > _MANY_CHARACTERS else 1
        seen = [char for char in _by_count(counts) if counts[char] >= least and not char.isascii()]
        budget = len(seen) if size is None else size - _LEAST_BYTES
        return Vocabulary(BYTES + ["".join(BYTES[byte] for byte in char.encode()) for char in seen[:budget]])


class _WordCounts:
    """Counts words between spaces. A vocabulary of symbols must hold all of them."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._counts: Counter[str] = Counter()

    def update(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._counts.update(text.split(" "))

    def vocabulary(self, size: int | None) -> Vocabulary:
        counts = self._counts
        del counts[""]
        budget = len(counts) if size is None else size - len(CONTROLS)
        if self._kind == "symbols" and len(counts) > budget:
            raise ValueError(
                f"a vocabulary of {size} is too small: there are {len(counts)} different symbols and "
                f"{len(CONTROLS)} control tokens, {len(counts) + len(CONTROLS)} in all"
            )
        return Vocabulary(_by_count(counts)[:budget])


class _Sample:
    """Keeps a sample of the texts, from which `find` trains a vocabulary of a given size."""

    def __init__(self, find: Callable[[list[str], int], Vocabulary]):
        self._find = find
        self._texts = EvenSample(_MOST_TEXTS, _MOST_CHARACTERS)
        self._bytes = 0  # of all texts

    def update(self, texts: Iterable[str]) -> None:
        self._texts.update(self._measured(texts))

    def _measured(self, texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            self._bytes += len(text) if text.isascii() else len(text.encode())
            yield text

    def vocabulary(self, size: int | None) -> Vocabulary:
        size = default_size(self._bytes) if size is None else size
        return self._find(self._texts.take(), size - len(CONTROLS))


class EvenSample:
    """An even sample of a stream of texts, of limited size. Not every n-th text, as source and target may alternate.

    Text n has rank n·φ modulo 1, with φ the golden ratio: any arithmetic progression of n fills [0, 1) evenly. Texts
    whose rank is below a limit are kept, and the limit is halved whenever they become too many.
    """

    def __init__(self, most_texts: int, most_characters: int):
        self._most_texts, self._most_characters = most_texts, most_characters
        self._kept: dict[int, str] = {}  # rank → text, in the order of the texts
        self._rank, self._limit, self._characters = 0, _MODULUS, 0  # the rank is that of the next text

    def update(self, texts: Iterable[str]) -> None:
        for text in texts:
            if self._rank < self._limit:
                self._kept[self._rank] = text
                self._characters += len(text)
                while len(self._kept) > 1 and self._is_too_large():
                    self._halve()
            self._rank = (self._rank + _GOLDEN) % _MODULUS

    def take(self) -> list[str]:
        """Return the sample and release it here: it may need much memory."""
        texts = [*self._kept.values()]
        self._kept.clear()
        return texts

    def _is_too_large(self) -> bool:
        return len(self._kept) > self._most_texts or self._characters > self._most_characters

    def _halve(self) -> None:
        self._limit //= 2
        self._kept = {rank: text for rank, text in self._kept.items() if rank < self._limit}
        self._characters = sum(map(len, self._kept.values()))


def _check_size(kind: str, size: int | None) -> None:
    least = len(CONTROLS) + 1 if kind in ("words", "symbols") else _LEAST_BYTES
    if size is not None and size < least:
        why = "one more" if kind in ("words", "symbols") else f"{len(BYTES)} bytes"
        raise ValueError(
            f"a vocabulary of {size} is too small: {kind} needs at least {least} ids "
            f"({len(CONTROLS)} control tokens and {why})"
        )


def _by_count(counts: Counter[str]) -> list[str]:
    """Sorted by falling count, then by code point."""
    return sorted(counts, key=lambda entry: (-counts[entry], entry))


def _pairs(sample: list[str], budget: int) -> Vocabulary:
    """Byte-pair encoding: the most frequent pair of neighbours becomes a piece, until the budget is used up."""
    rust = tokenizers.Tokenizer(models.BPE())
    rust.pre_tokenizer = splitter("bpe")
    trainer = trainers.BpeTrainer(vocab_size=budget, min_frequency=2, initial_alphabet=BYTES, show_progress=False)
    rust.train_from_iterator(sample, trainer, length=len(sample))
    merges = [(left, right) for left, right in json.loads(rust.to_str())["model"]["merges"]]
    pieces = dict.fromkeys([*BYTES, *(left + right for left, right in merges)])  # two pairs may make the same piece
    return Vocabulary([*pieces], merges)


def _likely_parts(sample: list[str], budget: int) -> Vocabulary:
    """A unigram model: the frequent parts of words that contribute most to the likelihood of the text."""
    cut, counts = splitter("unigram"), Counter[str]()
    for text in sample:
        counts.update(word for word, _ in cut.pre_tokenize_str(text))
    del sample  # frees memory for the training
    byte_of = {letter: byte for byte, letter in enumerate(BYTES)}
    words = {bytes(byte_of[letter] for letter in word): counts[word] for word in _by_count(counts)}
    found = train_unigram(words, budget)
    return Vocabulary(["".join(BYTES[byte] for byte in piece) for piece in found], scores=[*found.values()])
