"""The forms that training text has: pairs of texts, or one text. A task names the one it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from sixfold.config.schema import Data
from sixfold.text.preparation import ParallelText, PlainText, is_empty
from sixfold.text.sources import Source, Split, pair_sources, text_sources


class Reference(NamedTuple):
    """A text that a model is asked about, and the answers that are right."""

    source: str
    targets: tuple[str, ...]


@dataclass(frozen=True)
class TextForm:
    """How files become rows on disk."""

    name: str
    sources: Callable[[Data, Split], list[Source[Any]]]  # the files of a part
    preparation: Callable[..., Any]  # (data, progress) → check, train_tokenizers, encode: see preparation.py
    references: Callable[[Data, Split], list[Reference]]  # what a part is scored against
    limit: str  # the key of `data` that bounds a row: "max_length" or "context"
    ends: int = 0  # tokens more than that which a row can have: EOS
    has_pairs: bool = False


def pair_references(data: Data, part: Split) -> list[Reference]:
    """The raw text of a part, to score against. Equal sources become one.

    Pairs with an empty side are left out; long ones are not.
    """
    found: dict[str, dict[str, None]] = {}
    for source, target in chain.from_iterable(item.read() for item in pair_sources(data, part)):
        if not is_empty(source, target):
            found.setdefault(source, {})[target] = None
    return [Reference(source, tuple(targets)) for source, targets in found.items()]


def no_references(data: Data, part: Split) -> list[Reference]:
    """A text that is predicted word by word is scored by its likelihood alone."""
    return []


PAIRS = TextForm("pairs", pair_sources, ParallelText, pair_references, limit="max_length", ends=1, has_pairs=True)
PLAIN_TEXT = TextForm("plain text", text_sources, PlainText, no_references, limit="context")
