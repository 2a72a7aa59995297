"""Tokenizers: text to ids and back.

Ids 0 to 4 control the model (PAD, BOS, EOS, UNK, MASK). No text yields them, except UNK for a word that is not in the
vocabulary of `words` or `symbols`. The other kinds work on bytes, all 256 of which are always in the vocabulary (byte b
has id 5 + b), so that decoding restores every text exactly.

    kind         a piece is                                              decode(encode(text)) is the text
    bpe          a part of a word that grew from frequent pairs          exactly
    unigram      a part of a word, chosen by its probability             exactly
    characters   a character; one that was never seen: its bytes         exactly
    bytes        a byte                                                  exactly
    words        a frequent word between spaces                          except for unknown words and repeated spaces
    symbols      any symbol between spaces that was seen in training     except for unknown symbols and repeated spaces

The file has the format of the library `tokenizers`. The names of its control tokens contain the kind, such as
"<pad> sixfold-tokenizer-1 bpe". They contain a space, which no piece of text does (bytes write it "Ġ", words are split
there), so that no text is mistaken for a control token, not even the word "<pad>".
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from sixfold.core.ids import CONTROLS, PAD, UNK
from sixfold.disk.atomic import StagedFiles
from sixfold.disk.reading import read_bytes
from sixfold.text.pieces import (
    BETWEEN_SPACES,
    BETWEEN_WHITESPACE,
    Piece,
    spans_of_bytes,
    spans_of_words,
    words_of_spans,
)

KINDS = ("bpe", "unigram", "characters", "bytes", "words", "symbols")
FORMAT = "sixfold-tokenizer-1"
_SPLIT_AT_SPACES = ("words", "symbols")
_LETTER_BY_LETTER = ("characters", "bytes")

# A word with the space before it, its accents and vowel signs; a number; other signs; spaces.
_WORD = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
_CHARACTER = r"[\s\S]"
_CHUNK = 10_000  # texts that are encoded together
_LARGEST = 1 << 30  # bytes of a file

# The library uses threads, which do not survive a fork: a child process with parallelism enabled would deadlock.
# Without the variable, some versions warn at every fork. So it is set to true here, and to false in children.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))


def _byte_letters() -> list[str]:
    """The character by which the library writes each byte: itself if it is visible, otherwise one above U+00FF."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    visible = {ord(letter) for letter in letters if ord(letter) < 256}
    others = iter(letters[len(visible) :])
    return [chr(byte) if byte in visible else next(others) for byte in range(256)]


BYTES = _byte_letters()
_BYTE_OF = {letter: byte for byte, letter in enumerate(BYTES)}


class Vocabulary(NamedTuple):
    """The result of training: the pieces after the control ids, and merges or scores of their kind."""

    pieces: Sequence[str]
    merges: Sequence[tuple[str, str]] = ()  # bpe: pairs that are merged, in order
    scores: Sequence[float] = ()  # unigram: the log-probability of each piece


class Tokenizer:
    """Text to ids and back. Made by `train_tokenizer` or `Tokenizer.load`."""

    def __init__(self, kind: str, vocabulary: Vocabulary):
        self.kind = kind
        self._rust = _assemble(kind, vocabulary)
        self._text = self._rust.to_str(pretty=True)
        self._spelling = _Spelling(vocabulary.pieces) if kind in _LETTER_BY_LETTER else None

    def __len__(self) -> int:
        return self._rust.get_vocab_size()

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, {len(self)} ids)"

    @property
    def spells(self) -> bool:
        """Whether it spells unknown words in bytes, so that no text is unknown."""
        return self.kind not in _SPLIT_AT_SPACES

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without BOS and EOS."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """The ids of many texts."""
        rows: list[list[int]] = []
        texts = iter(texts)
        while chunk := [checked(text) for text in islice(texts, _CHUNK)]:
            if self._spelling is None:
                rows += [row.ids for row in self._rust.encode_batch_fast(chunk, add_special_tokens=False)]
            else:
                rows += map(self._spelling.spell, chunk)
        return rows

    def split(self, text: str) -> list[Piece]:
        """The pieces of a text with their spans and word numbers; their ids are those of `encode`.

        Words are separated by whitespace; for the kinds `words` and `symbols`, by spaces.
        """
        ids = self.encode(text)
        word = BETWEEN_WHITESPACE if self.spells else BETWEEN_SPACES
        spans = spans_of_words(text, word)
        if self.spells:
            spans = spans_of_bytes(text, [len(self._rust.id_to_token(id_) or "") for id_ in ids])
        parts = zip(ids, self.pieces(ids), spans, words_of_spans(text, spans, word), strict=True)
        return [Piece(id_, piece, *span, number) for id_, piece, span, number in parts]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids. Control ids and ids outside the vocabulary are skipped."""
        most = len(self)
        return self._rust.decode([int(id_) for id_ in ids if len(CONTROLS) <= id_ < most], skip_special_tokens=False)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id, made readable: ▁ for a space, \\x… for bytes of an incomplete character."""
        return [self._piece(int(id_)) for id_ in ids]

    def spellings(self) -> list[bytes]:
        """The bytes of each id: joined, they are the text that `decode` returns, in UTF-8.

        Words and symbols begin with a space, which is dropped at the start of a text. Control ids have no bytes.
        """
        pieces = [self._rust.id_to_token(id_) or "" for id_ in range(len(CONTROLS), len(self))]
        if self.kind in _SPLIT_AT_SPACES:
            spelt = [f" {piece}".encode() for piece in pieces]
        else:
            spelt = [bytes(_BYTE_OF[letter] for letter in piece) for piece in pieces]
        return [b""] * len(CONTROLS) + spelt

    def _piece(self, id_: int) -> str:
        if id_ in CONTROLS:
            return CONTROLS[id_]
        piece = self._rust.id_to_token(id_) if 0 <= id_ < len(self) else None
        if piece is None:
            return f"<{id_}>"
        if self.kind not in _SPLIT_AT_SPACES:
            piece = bytes(_BYTE_OF[letter] for letter in piece).decode("utf-8", "backslashreplace")
        return "".join(_visible(letter) for letter in piece)

    def names(self) -> list[str]:
        """The name of each id in the file; all are different."""
        return [self._rust.id_to_token(id_) or "" for id_ in range(len(self))]

    def merges(self) -> Iterator[tuple[int, int, int]]:
        """The merges of bpe in order: the ids of both halves and of the result. Other kinds have none."""
        id_of = self._rust.get_vocab().__getitem__
        for left, right in json.loads(self._text)["model"].get("merges", []):
            yield id_of(left), id_of(right), id_of(left + right)

    @property
    def text(self) -> str:
        """The text of the file that `save` writes."""
        return self._text

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the file that `save` writes."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the file directly; for an atomic write, give a staged path."""
        path.write_bytes(self._text.encode())

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a file that `save` wrote."""
        if not path.is_file():
            raise ValueError(f"there is no tokenizer at {path}")
        try:
            text = read_bytes(path, _LARGEST).decode()
            stored = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises no narrower one
            raise ValueError(f"{path} is damaged, or not a tokenizer: {error}") from None
        model = json.loads(stored.to_str())["model"]
        kind = _kind(model, path)
        vocabulary = _vocabulary(kind, model, path)
        # Rebuilt from its vocabulary alone, it must equal the file, so that nothing else in the file has an effect.
        try:
            tokenizer = cls(kind, vocabulary)
        except Exception as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        if tokenizer._rust.to_str() != stored.to_str() or len(tokenizer) != stored.get_vocab_size():
            raise ValueError(f"{path} was changed: it is not what sixfold writes for a tokenizer of kind {kind}")
        tokenizer._text = text  # another version of the library may have formatted it differently
        return tokenizer


class _Spelling(dict[str, tuple[int, ...]]):
    """The ids of each character, for kinds without merges: several times as fast as the library."""

    def __init__(self, pieces: Iterable[str]):
        letters = (bytes(_BYTE_OF[letter] for letter in piece) for piece in pieces)
        super().__init__(
            (letter.decode(), (id_,)) for id_, letter in enumerate(letters, len(CONTROLS)) if _is_character(letter)
        )

    def __missing__(self, character: str) -> tuple[int, ...]:
        self[character] = ids = tuple(len(CONTROLS) + byte for byte in character.encode())
        return ids

    def spell(self, text: str) -> list[int]:
        return [*chain.from_iterable(map(self.__getitem__, text))]


class Tokenizers(NamedTuple):
    """The tokenizers of a model's source and target, often one and the same."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def save(self, directory: Path) -> None:
        """Write tokenizer.json, or source.tokenizer.json and target.tokenizer.json."""
        files = {_JOINT: self.source} if self.joint else dict(zip(_SEPARATE, self, strict=True))
        with StagedFiles(directory) as staging:
            for name, tokenizer in files.items():
                staging.write(name, tokenizer.save)
        for name in {_JOINT, *_SEPARATE} - files.keys():
            (directory / name).unlink(missing_ok=True)

    @classmethod
    def load(cls, directory: Path) -> Tokenizers:
        """Read the files that `save` wrote."""
        here = [name for name in (_JOINT, *_SEPARATE) if (directory / name).exists()]
        if here == [_JOINT]:
            both = Tokenizer.load(directory / _JOINT)
            return cls(both, both)
        if here == [*_SEPARATE]:
            return cls(*(Tokenizer.load(directory / name) for name in _SEPARATE))
        raise ValueError(
            f"{directory} must hold {_JOINT}, or {' and '.join(_SEPARATE)}; it has {' and '.join(here) or 'none'}"
        )


_JOINT, _SEPARATE = "tokenizer.json", ("source.tokenizer.json", "target.tokenizer.json")


def checked(text: str) -> str:
    """The text; ValueError if it has half of a surrogate pair, which is not a character and has no bytes."""
    if not isinstance(text, str):
        raise ValueError(f"expected a text, got {type(text).__name__}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = f"U+{ord(text[error.start]):04X}"
            raise ValueError(f"the text has half a character ({code}) at index {error.start}: {text!a:.60}") from None
    return text


def splitter(kind: str) -> pre_tokenizers.PreTokenizer:
    """The pre-tokenizer: splits a text, and for all kinds but words and symbols spells it in bytes."""
    if kind in _SPLIT_AT_SPACES:
        return pre_tokenizers.Split(" ", behavior="removed")
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if kind == "bytes":
        return spell
    cut = pre_tokenizers.Split(Regex(_CHARACTER if kind == "characters" else _WORD), behavior="isolated")
    return pre_tokenizers.Sequence([cut, spell])


def _assemble(kind: str, vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    rust = tokenizers.Tokenizer(_model(kind, vocabulary))
    rust.pre_tokenizer = splitter(kind)
    if kind not in _SPLIT_AT_SPACES:  # without a decoder, pieces are joined with spaces
        rust.decoder = decoders.ByteLevel()
    return rust


def _model(kind: str, vocabulary: Vocabulary) -> models.Model:
    controls = [_control(id_, kind) for id_ in CONTROLS]
    if kind == "unigram":
        scores = [0.0] * len(controls) + list(vocabulary.scores)
        return models.Unigram(list(zip([*controls, *vocabulary.pieces], scores, strict=True)), unk_id=UNK)
    ids = {piece: id_ for id_, piece in enumerate([*controls, *vocabulary.pieces])}
    if kind in _SPLIT_AT_SPACES:
        return models.WordLevel(ids, unk_token=controls[UNK])
    # A character in the vocabulary needs no merges: it is looked up directly.
    return models.BPE(ids, list(vocabulary.merges), ignore_merges=kind == "characters")


def _control(id_: int, kind: str) -> str:
    return f"{CONTROLS[id_]} {FORMAT} {kind}"


def _kind(model: dict[str, Any], path: Path) -> str:
    """The kind, from the name of the padding token."""
    vocabulary = model.get("vocab")
    names = [entry[0] for entry in vocabulary[:1]] if isinstance(vocabulary, list) else [*(vocabulary or {})][:1]
    name, _, rest = (names or [""])[0].partition(" ")
    form, _, kind = rest.partition(" ")
    if name != CONTROLS[PAD] or not form.startswith("sixfold-tokenizer"):
        raise ValueError(f"{path} is a tokenizer, but not one that sixfold trained: its id 0 is {names[:1]}")
    if form != FORMAT:
        raise ValueError(f"{path} has format {form!r}; this version of sixfold reads {FORMAT!r}")
    if kind not in KINDS:
        raise ValueError(f"{path} is of kind {kind!r}; this version of sixfold knows {', '.join(KINDS)}")
    return kind


def _vocabulary(kind: str, model: dict[str, Any], path: Path) -> Vocabulary:
    """The vocabulary in a file; ValueError if it is incomplete or has impossible pieces."""
    entries = model["vocab"]
    scores = [score for _, score in entries] if isinstance(entries, list) else []
    pieces = [piece for piece, _ in entries] if isinstance(entries, list) else sorted(entries, key=entries.get)
    spelt = kind not in _SPLIT_AT_SPACES
    first = [_control(id_, kind) for id_ in CONTROLS] + (BYTES if spelt else [])
    if pieces[: len(first)] != first:
        raise ValueError(f"{path} is damaged: its vocabulary lacks the control tokens or bytes of {kind}")
    for piece in pieces[len(first) :]:
        if " " in piece or (spelt and not _BYTE_OF.keys() >= set(piece)):
            raise ValueError(f"{path} is damaged: {piece!r} can't be a piece of a text")
    merges = [(left, right) for left, right in model.get("merges", [])]
    return Vocabulary(pieces[len(CONTROLS) :], merges, scores[len(CONTROLS) :])


def _is_character(letters: bytes) -> bool:
    """Whether these bytes are a complete character, not a part of one."""
    return len(letters) > 1 or letters.isascii()


def _visible(letter: str) -> str:
    if letter == " ":
        return "▁"
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()
