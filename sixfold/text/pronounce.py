"""The embedded example: English words and their pronunciations, from the CMU Pronouncing Dictionary.

    hello    HH AH0 L OW1        a word, and its phones: a vowel ends in its stress (0 none, 1 primary, 2 secondary)
    hello    HH EH0 L OW1        a word with several pronunciations is several examples

It is real data, and small enough to train on in minutes. `tools/make_pronounce.py` makes the table.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import resources

SPLITS = ("train", "valid", "test")


def examples(split: str) -> Iterator[tuple[str, str]]:
    """The words of one split with one pronunciation each, in alphabetical order."""
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}; there are {', '.join(SPLITS)}")
    for word, said in _words().items():
        if split_of(word) == split:
            for sounds in said:
                yield word, sounds


def pronunciations() -> dict[str, tuple[str, ...]]:
    """Every word with all its pronunciations, the usual one first."""
    return dict(_words())


def split_of(word: str) -> str:
    """The split of a word: about 93 % are for training, 2 % for validation and 5 % for the test.

    It is a hash of the spelling, so a word is in one split with all its pronunciations, on every machine and with every
    version of the table. Related words ("baker", "baker's") are split independently.
    """
    hundredth = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big") % 100
    return "test" if hundredth < 5 else "valid" if hundredth < 7 else "train"


def fingerprint() -> str:
    """The SHA-256 of the table."""
    return hashlib.sha256(_table().encode()).hexdigest()


@cache
def _words() -> dict[str, tuple[str, ...]]:
    rows = (line.split("\t") for line in _table().splitlines())
    return {word: tuple(said) for word, *said in rows}


@cache
def _table() -> str:
    packed = resources.files("sixfold.text").joinpath("examples", "pronounce.txt.gz").read_bytes()
    return gzip.decompress(packed).decode()
