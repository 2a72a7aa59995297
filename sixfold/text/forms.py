"""The forms that training text has: pairs of texts, or one text. A task names the one it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sixfold.config.schema import Data
from sixfold.text.labelled import LabelledText, label_references
from sixfold.text.preparation import (
    ParallelText,
    PlainText,
    Preparation,
    Reference,
    ReferenceCollector,
    without_empty_sides,
)
from sixfold.text.sources import Source, Split, pair_sources, text_sources
from sixfold.text.tables import table_sources


@dataclass(frozen=True)
class TextForm:
    """How files become rows on disk."""

    name: str
    sources: Callable[[Data, Split], list[Source[Any]]]  # the files of a part
    preparation: type[Preparation]  # reads them twice
    references: Callable[[Data, Split], list[Reference]]  # what a part is scored against
    limit: str  # the key of `data` that bounds a row: "max_length" or "context"
    ends: int = 0  # tokens more than that which a row can have: EOS
    has_pairs: bool = False
    has_labels: bool = False


def pair_references(data: Data, part: Split) -> list[Reference]:
    """The raw text of a part, to score against. Equal sources become one.

    Pairs with an empty side are left out; long ones are not.
    """
    collector = ReferenceCollector()
    for item in pair_sources(data, part):
        collector.update(without_empty_sides(item.read()))
    return collector.references()


def no_references(data: Data, part: Split) -> list[Reference]:
    """A text that is predicted word by word is scored by its likelihood alone."""
    return []


PAIRS = TextForm("pairs", pair_sources, ParallelText, pair_references, limit="max_length", ends=1, has_pairs=True)
LABELLED_TEXT = TextForm(
    "texts with labels", table_sources, LabelledText, label_references, limit="max_length", has_labels=True
)
PLAIN_TEXT = TextForm("plain text", text_sources, PlainText, no_references, limit="context")
