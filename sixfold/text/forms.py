"""The forms of training text: pairs of texts, plain text, texts with labels. A task names its form.

The modules that read and prepare text are imported when they are first called: using a trained model needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sixfold.config.schema import Data
    from sixfold.text.preparation import Preparation, Reference
    from sixfold.text.sources import Source, Split


@dataclass(frozen=True)
class TextForm:
    """How files become rows on disk."""

    name: str
    sources: Callable[[Data, Split], list[Source[Any]]]  # the files of a split
    preparation: Callable[..., Preparation]  # (data, progress[, labels]): reads them twice
    references: Callable[[Data, Split], list[Reference]]  # the texts that a split is scored against
    limit: str  # the key of `data` that bounds a row: "max_length" or "context"
    ends: int = 0  # tokens of a row beyond that limit: EOS
    has_pairs: bool = False
    has_labels: bool = False


def _later(module: str, name: str) -> Callable[..., Any]:
    """A function of `sixfold.text`, imported when it is called."""

    def call(*arguments: Any) -> Any:
        return getattr(import_module(f"sixfold.text.{module}"), name)(*arguments)

    return call


PAIRS = TextForm(
    "pairs",
    _later("sources", "pair_sources"),
    _later("preparation", "ParallelText"),
    _later("preparation", "pair_references"),
    limit="max_length",
    ends=1,
    has_pairs=True,
)
PLAIN_TEXT = TextForm(
    "plain text",
    _later("sources", "text_sources"),
    _later("plain_text", "PlainText"),
    _later("preparation", "no_references"),
    limit="context",
)
LABELLED_TEXT = TextForm(
    "texts with labels",
    _later("tables", "table_sources"),
    _later("labelled", "LabelledText"),
    _later("labelled", "label_references"),
    limit="max_length",
    has_labels=True,
)
