"""What may be wrong with a row of training text: the kinds, and the checks that need only the row itself.

The bit of a kind in a row's flags is its index in `KINDS`; the first kind of a row is the reason why it is dropped.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

from sixfold.doctor.items import UNDECODABLE

LONG = 8  # characters per token of data.max_length: pieces have fewer on average, so training drops or cuts the text
LEAST_COPY = 15  # characters: a name or a number may be the same in both languages
LEAST_LINE = 80  # characters of a line of plain text that is a duplicate: shorter lines, as in verse, recur in any text
SLACK = 40  # characters that a side may be longer in any case; ten tokens in the report of training
LEAST_LETTERS, SEEN = 3, 60  # letters that tell a script; characters of a text that are looked at
USUAL_SCRIPT = 0.9  # share of a side's texts in one script from which others are suspicious


class SuspicionKind(NamedTuple):
    """One kind of suspicion."""

    name: str
    said: str  # after the number of rows
    dropped: bool = True  # by --clean, from the training text


KINDS = (
    SuspicionKind("undecodable", "with bytes that are not UTF-8, or U+FFFD from an earlier conversion"),
    SuspicionKind("mojibake", "with UTF-8 that was read as another encoding, such as Ã¤ for ä"),
    SuspicionKind("control", "with control characters"),
    SuspicionKind("empty", "with an empty text"),
    SuspicionKind("copied", "whose target is a copy of the source"),
    SuspicionKind("script", "in another script than the other texts of this side"),
    SuspicionKind("length", "of unlikely lengths: one side is more than 3 times as long as expected from the other"),
    SuspicionKind("long", "so long that training drops or cuts them"),
    SuspicionKind("labels", "whose text occurs with another label, too"),
    SuspicionKind("duplicate", "that occurred before"),
    SuspicionKind("held_out", "whose source is also in the validation or test text"),
    SuspicionKind("in_training", "whose source is also in the training text", dropped=False),
)
FLAGS = {kind.name: 1 << index for index, kind in enumerate(KINDS)}

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SECOND = "\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"  # a byte from 0x80 to 0xBF, as Latin-1 or Windows-1252
_QUOTES = "«»‹›‘’“”"  # some of these, which may follow a capital letter: »Ä«
# Accented Latin letters; quotes and dashes; Cyrillic and Greek, two letters in a row: Ñ or Î alone is a letter.
_MOJIBAKE = re.compile(
    rf"[ÂÃÄÅ](?:(?![{_QUOTES}])[{_SECOND}]|[{_QUOTES}](?=\w))|â[\x80€][{_SECOND}]|(?:[ÐÑÎÏ][{_SECOND}]){{2}}"
)
_OTHERS = re.compile("[^\x00-\u024f]")  # after Latin Extended-B
_LATIN = re.compile(f"(?:[A-Za-zÀ-\u024f][^A-Za-zÀ-\u024f]*){{{LEAST_LETTERS}}}")
_ONE_SCRIPT = {  # first words of Unicode names that are used together in one language
    **dict.fromkeys(("CJK", "HIRAGANA", "KATAKANA", "IDEOGRAPHIC", "BOPOMOFO", "HALFWIDTH"), "CJK"),
    "FULLWIDTH": "LATIN",
}


def flags_of(texts: tuple[str, ...]) -> int:
    """The flags of what each text shows by itself."""
    found = 0
    for text in texts:
        if UNDECODABLE in text:
            found |= FLAGS["undecodable"]
        if is_mojibake(text):
            found |= FLAGS["mojibake"]
        elif not text.isprintable() and _CONTROL.search(text):
            found |= FLAGS["control"]
    return found


def is_mojibake(text: str) -> bool:
    """Whether a part of it, as the bytes of Windows-1252 or Latin-1, is UTF-8."""
    return not text.isascii() and any(_is_utf8(match[0]) for match in _MOJIBAKE.finditer(text))


def _is_utf8(part: str) -> bool:
    try:
        b"".join(_byte(character) for character in part).decode()
    except UnicodeDecodeError:
        return False
    return True


def _byte(character: str) -> bytes:
    return character.encode("latin-1") if character <= "\xff" else character.encode("cp1252")


def is_copy(texts: tuple[str, ...]) -> bool:
    source, target = (text.strip() for text in texts)
    return source == target and len(source) >= LEAST_COPY


def script_of(text: str) -> str:
    """The script of more than half of a text's letters; empty if there are few letters, or no such script."""
    beginning = text[:SEEN]
    if not _OTHERS.search(beginning):  # a loop over the characters of each line would take most of the time
        return "LATIN" if _LATIN.search(beginning) else ""
    counts: dict[str, int] = {}
    for character in beginning:
        if script := _script(character):
            counts[script] = counts.get(script, 0) + 1
    letters = sum(counts.values())
    if letters < LEAST_LETTERS:
        return ""
    script = max(counts, key=lambda name: counts[name])
    return script if 2 * counts[script] > letters else ""


@lru_cache(maxsize=1 << 16)
def _script(character: str) -> str:
    """The script of a letter, such as LATIN; empty for other characters."""
    if not character.isalpha():
        return ""
    first = unicodedata.name(character, "").partition(" ")[0]
    return _ONE_SCRIPT.get(first, first)
