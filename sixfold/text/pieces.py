"""Pieces of a text with their spans and word numbers.

index     0 1 2 3 4 5 6 7
text      c a f é   d o g        here é is spelt in two bytes, and a space belongs to the word after it
pieces    caf  \\xc3  \\xa9  ▁dog
spans     0:3   3:4   3:4   4:8
words      0     0     0     1
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

Span = tuple[int, int]  # first character, and the one after the last

BETWEEN_WHITESPACE = re.compile(r"\S+")
BETWEEN_SPACES = re.compile(r"[^ ]+")


class Piece(NamedTuple):
    """A token of a text."""

    id: int
    text: str  # readable: ▁ for a space, \\x… for bytes of an incomplete character
    start: int  # text[start:end] are its characters, its spaces included
    end: int
    word: int | None  # the number of its word in the text, from 0; None if it has only spaces


def spans_of_bytes(text: str, lengths: Sequence[int]) -> list[Span]:
    """The spans of consecutive pieces that have these numbers of bytes in UTF-8.

    A piece that begins or ends inside a character has the whole character in its span. So spans are in order, cover the
    text, and overlap only in such characters.
    """
    character_of = [index for index, character in enumerate(text) for _ in character.encode()]  # of each byte
    ends = accumulate(lengths)
    return [(character_of[end - length], character_of[end - 1] + 1) for end, length in zip(ends, lengths, strict=True)]


def spans_of_words(text: str, word: re.Pattern[str]) -> list[Span]:
    return [match.span() for match in word.finditer(text)]


def words_of_spans(text: str, spans: Sequence[Span], word: re.Pattern[str]) -> list[int | None]:
    """For each span the number of the first word that it touches; None if it touches none."""
    number_of: list[int | None] = [None] * len(text)  # of each character
    for number, (start, end) in enumerate(spans_of_words(text, word)):
        number_of[start:end] = [number] * (end - start)
    return [next((each for each in number_of[start:end] if each is not None), None) for start, end in spans]
