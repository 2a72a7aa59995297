"""How many tokens a word has, by tokenizer: few make short sequences, many make each of them easy to learn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sixfold.config.schema import Data
from sixfold.doctor.items import Item
from sixfold.text.vocabulary import EvenSample, TokenizerTrainer, default_size

TEXTS, CHARACTERS = 20_000, 2_000_000  # most in the sample of a side: enough for two digits, trained in seconds
_WITHOUT_SPACES = 15  # characters per "word" from which a side has no spaces between words; German has 6 to 7


class TokensPerWord(NamedTuple):
    """A tokenizer, and its tokens per word of each side."""

    kind: str
    vocabulary: int
    tokens: tuple[float, ...]  # source and target, or one text


class Sides:
    """Samples of the training text, a sample for each side."""

    def __init__(self, sides: int):
        self._samples = [EvenSample(TEXTS, CHARACTERS) for _ in range(sides)]
        self._texts: list[list[str]] | None = None

    def add(self, item: Item) -> None:
        for text, sample in zip(item.texts, self._samples, strict=True):
            sample.update([text])

    @property
    def texts(self) -> list[list[str]]:
        if self._texts is None:
            self._texts = [sample.take() for sample in self._samples]
        return self._texts

    def units(self) -> tuple[str, ...]:
        """What tokens are counted by: words, or characters where there are no spaces between words."""
        return tuple("word" if _have_spaces(texts) else "character" for texts in self.texts)

    def measure(self, data: Data, size: int) -> list[TokensPerWord]:
        """Tokens per unit for bpe of the default size, for characters, and for the tokenizer that is configured.

        `size` is the number of bytes of the whole text.
        """
        if not any(text.strip() for texts in self.texts for text in texts):
            return []
        own = data.tokenizer
        kinds = dict.fromkeys(("bpe", "characters", *([own] if isinstance(own, str) else [])))
        found = [_measure(kind, self.texts, _size(kind, data, size)) for kind in kinds]
        if not isinstance(own, str) and len(self.texts) == 2:
            each = [
                _measure(kind, [texts], None) for kind, texts in zip((own.source, own.target), self.texts, strict=True)
            ]
            both = sum((side.tokens for side in each), ())
            found.append(
                TokensPerWord(" → ".join(side.kind for side in each), sum(side.vocabulary for side in each), both)
            )
        return found


def _size(kind: str, data: Data, size: int) -> int | None:
    """The ids of a joint vocabulary: as configured, or by default for a text of this number of bytes."""
    if kind == data.tokenizer and isinstance(data.vocabulary, int):
        return data.vocabulary
    return default_size(size) if kind in ("bpe", "unigram") else None


def _measure(kind: str, sides: Sequence[Sequence[str]], size: int | None) -> TokensPerWord:
    """Train one tokenizer on all sides, and count its tokens on each."""
    trainer = TokenizerTrainer(kind, size)
    for texts in sides:
        trainer.update(texts)
    tokenizer = trainer.finish()
    tokens = (sum(map(len, tokenizer.encode_batch(texts))) for texts in sides)
    each = (number / max(_units(texts), 1) for number, texts in zip(tokens, sides, strict=True))
    return TokensPerWord(kind, len(tokenizer), tuple(each))


def _have_spaces(texts: Iterable[str]) -> bool:
    words = [word for text in texts for word in text.split()]
    return sum(map(len, words)) <= _WITHOUT_SPACES * len(words)


def _units(texts: Sequence[str]) -> int:
    if _have_spaces(texts):
        return sum(len(text.split()) for text in texts)
    return sum(map(len, texts))
