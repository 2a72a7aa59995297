"""Finds words and phrases in a text that is still being written, however it is split into tokens.

A phrase occurs only as a full word: where it begins or ends with a letter, no letter is next to it. Letters are
Unicode's letters, marks and digits. Characters of scripts without spaces between words (Chinese, Japanese, Thai, …) do
not count as letters, so a phrase in them occurs anywhere. Comparison is case-sensitive: "Cat" is not "cat".

    phrase    occurs in                          not in
    cat       cat   a cat.   cat-like   «cat»    cats   concat   cat2   Cat
    $5        $5   US$5   $5.                    $50
    猫        猫   黒猫が   a猫b
"""

from __future__ import annotations

import codecs
import sys
import unicodedata
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sixfold.core.ids import CONTROLS, UNK
from sixfold.text.tokenizer import Tokenizer

Ints = NDArray[np.int32]
S = TypeVar("S")

BROKEN = "\ufffd"  # replaces bytes that are not a character
_REMEMBERED = 10_000  # cached states of a walk

# Blocks of scripts without spaces between words, from the first to the last code point.
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x3005, 0x312F),  # kana, bopomofo, and signs used with Chinese characters
    (0x31A0, 0x31FF),
    (0x3400, 0x4DBF),  # Chinese characters
    (0x4E00, 0x9FFF),
    (0xA000, 0xA4CF),  # Yi
    (0xA980, 0xA9DF),  # Javanese
    (0xA9E0, 0xA9FF),
    (0xAA60, 0xAADF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),  # half-width kana
    (0x1AFF0, 0x1B16F),
    (0x20000, 0x3FFFF),  # rare Chinese characters
)
# Beyond these, Unicode has Chinese characters, private ones, and many unassigned code points.
_WITH_LETTERS = ((0x0, 0x1FFFF), (0xE0000, 0xE0FFF))


@lru_cache(maxsize=100_000)
def is_letter(character: str) -> bool:
    """Whether it is a letter, mark or digit of a script with spaces between words."""
    if unicodedata.category(character)[0] not in "LMN":
        return False
    block = bisect(_UNSPACED, (ord(character), sys.maxunicode)) - 1
    return block < 0 or ord(character) > _UNSPACED[block][1]


class Match(NamedTuple):
    """The phrases that have begun at the end of a text, and are not complete."""

    letter: bool = False  # whether the last character is a letter
    open: tuple[int, ...] = ()  # their nodes, the phrase that began first comes first


class Phrases:
    """Finds phrases in a text that is read character by character.

    The phrases form a prefix tree: each node is the beginning of one or more. Each character has a code: its own if it
    occurs in a phrase, else OTHER or LETTER.
    """

    OTHER, LETTER = 0, 1

    def __init__(self, phrases: Sequence[str]):
        self.phrases = tuple(phrases)
        self._codes = {character: code for code, character in enumerate(dict.fromkeys("".join(phrases)), 2)}
        self._letters = [False, True, *map(is_letter, self._codes)]
        self._completed: dict[bytes, tuple[int, list[int]]] = {}
        self._next: list[dict[int, int]] = [{}]  # the nodes, by code; the first is the root
        self._last: dict[int, int] = {}  # which phrase is complete at a node
        for number, phrase in enumerate(self.phrases):
            node = 0
            for character in phrase:
                node = self._next[node].setdefault(self._codes[character], len(self._next))
                if node == len(self._next):
                    self._next.append({})
            self._last[node] = number

    def __len__(self) -> int:
        """The number of codes."""
        return len(self._letters)

    def code(self, character: str) -> int:
        own = self._codes.get(character)
        return (self.LETTER if is_letter(character) else self.OTHER) if own is None else own

    def read(self, match: Match, code: int) -> tuple[Match, tuple[int, ...]]:
        """Read a character. → the new match, and the phrases that occur for certain from now on"""
        letter = self._letters[code]
        found = () if letter else self.at_end(match)
        nodes = match.open if match.letter and letter else (*match.open, 0)  # no word begins in the middle of another
        goes_on = tuple(child for node in nodes if (child := self._next[node].get(code)) is not None)
        if not letter:
            found += tuple(self._last[node] for node in goes_on if node in self._last)
        return Match(letter, goes_on), found

    def at_end(self, match: Match) -> tuple[int, ...]:
        """The phrases that occur if no letter follows."""
        return tuple(self._last[node] for node in match.open if node in self._last) if match.letter else ()

    def completed(self, pending: bytes) -> tuple[int, list[int]]:
        """How many bytes an incomplete character lacks, and the codes of all characters that it may become."""
        if pending not in self._completed:
            missing, first, last = _characters(pending)
            own = [code for character, code in self._codes.items() if first <= ord(character) <= last]
            others = [code for code in (self.OTHER, self.LETTER) if _has(first, last, letter=code == self.LETTER)]
            self._completed[pending] = missing, own + others
        return self._completed[pending]

    def find(self, text: str) -> set[int]:
        """The phrases that occur in a complete text."""
        match, found = Match(), set[int]()
        for character in text:
            match, now = self.read(match, self.code(character))
            found.update(now)
        return found.union(self.at_end(match))


class Spellings:
    """The characters that each id of a vocabulary adds to a text. UNK adds a placeholder if the tokenizer can make it.

    Most ids add complete characters. These are stored by columns, the longest first, so that all of them can be read at
    once:

        id 7    c a t s          columns    c a i    (ids 7, 9, 8)
        id 9    a t                         a t
        id 8    i                           t
                                            s
    """

    def __init__(self, tokenizer: Tokenizer):
        self.bytes = tokenizer.spellings()
        if not tokenizer.spells:
            self.bytes[UNK] = f" {CONTROLS[UNK]}".encode()
        self.texts = [_complete(spelling) for spelling in self.bytes]
        self.complete = np.array(
            sorted((id_ for id_, text in enumerate(self.texts) if text), key=lambda id_: -len(self.texts[id_])),
            dtype=np.int64,
        )
        self.other = [id_ for id_, text in enumerate(self.texts) if not text]  # controls, and parts of characters
        self.no_letter_first = [id_ for id_ in self.complete.tolist() if not is_letter(self.texts[id_][0])]
        letters: dict[str, int] = {}
        columns: list[list[int]] = [[] for _ in range(max(map(len, self.texts), default=0))]
        for id_ in self.complete.tolist():
            for column, character in zip(columns, self.texts[id_], strict=False):
                column.append(letters.setdefault(character, len(letters)))
        self.characters = [*letters]
        self.columns: list[Ints] = [np.array(column, dtype=np.int32) for column in columns]

    def __len__(self) -> int:
        return len(self.bytes)

    def read(self, pending: bytes, id_: int) -> tuple[str, bytes]:
        """Read an id after the `pending` bytes of an incomplete character. → the text added, the new pending bytes"""
        if not pending and self.texts[id_]:
            return self.texts[id_], b""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(pending + self.bytes[id_])
        return text, decoder.getstate()[0]


@lru_cache(maxsize=8)
def spellings(tokenizer: Tokenizer) -> Spellings:
    """The same object for the same tokenizer."""
    return Spellings(tokenizer)


class Walk(Generic[S]):
    """The state after a sequence of tokens, computed from the cached state before the last token."""

    def __init__(self, start: S, after: Callable[[S, int], S]):
        self._start, self._after = start, after
        self._known: dict[tuple[int, ...], S] = {}

    def __call__(self, written: Sequence[int]) -> S:
        written = tuple(written)
        state = self._known.get(written)
        if state is None:
            before = self._known.get(written[:-1]) if written else None
            state = reduce(self._after, written, self._start) if before is None else self._after(before, written[-1])
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[written] = state
        return state


def stripped(phrases: Sequence[str], what: str) -> tuple[str, ...]:
    """Phrases without surrounding spaces and without duplicates."""
    if isinstance(phrases, str):
        raise ValueError(f"{what} must be a list, got one text: {phrases!r}")
    bare = tuple(dict.fromkeys(phrase.strip() for phrase in phrases))
    if not all(bare):
        raise ValueError(f"{what} must not be empty, got {list(phrases)!r}")
    return bare


def _characters(pending: bytes) -> tuple[int, int, int]:
    """How many bytes a UTF-8 character still lacks, and the first and last code point that it may become."""
    size = 2 if pending[0] < 0xE0 else 3 if pending[0] < 0xF0 else 4
    bits = pending[0] & (0xFF >> (size + 1))
    for byte in pending[1:]:
        bits = bits << 6 | byte & 0x3F
    missing = size - len(pending)
    first = bits << 6 * missing
    last = first + (1 << 6 * missing) - 1
    return missing, max(first, (0x80, 0x800, 0x10000)[size - 2]), min(last, sys.maxunicode)


@lru_cache(maxsize=100_000)
def _has(first: int, last: int, letter: bool) -> bool:
    """Whether a range of code points has a letter (or, with letter=False, a character that is not one)."""
    if not letter:
        return any(not is_letter(chr(code)) for code in range(first, last + 1))
    areas = (range(max(first, start), min(last, end) + 1) for start, end in _WITH_LETTERS)
    return any(is_letter(chr(code)) for area in areas for code in area)


def _complete(spelling: bytes) -> str:
    """These bytes as text; empty if they are not complete characters."""
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        return ""
