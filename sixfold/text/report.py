"""The report on the text of a run: counts of each split, and remarks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sixfold.text.arrays import Array

_FACTOR, _SLACK = 3, 10
OUTLIER_RULE = f"one side over {_FACTOR} × the expected + {_SLACK} tokens"


def outliers(source: Array, target: Array, slack: int = _SLACK) -> Array:
    """The pairs with unlikely lengths: t > 3rs + 10 or rs > 3t + 10, for s source and t target tokens, r = Σt / Σs."""
    expected = source * (target.sum() / max(source.sum(), 1))
    return (target > _FACTOR * expected + slack) | (expected > _FACTOR * target + slack)


def count_outliers(source: Array, target: Array) -> int:
    return int(outliers(source, target).sum())


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """Counts of one split. None: does not apply, or was not counted."""

    lines: int  # pairs, rows of a table, or the lines or documents of a language model
    documents: int | None = None  # of a language model
    empty: int = 0  # pairs with an empty side, rows without a text, or empty documents: dropped
    duplicates: int = 0  # lines that occurred before in this split
    in_training: int | None = None  # sources, or lines, that also occur in training
    over_long: int | None = None  # pairs with too many tokens: dropped
    rows: int | None = None  # pairs that remain, or windows
    outliers: int | None = None  # of these pairs, those with unlikely lengths
    source_tokens: int | None = None
    target_tokens: int | None = None
    classes: int | None = None  # different labels, where texts are classified
    two_labels: int | None = None  # texts that occur with more than one label
    cut: int | None = None  # texts with too many tokens, cut to the limit
    bytes: int | None = None  # of the validation text of a language model


@dataclass(frozen=True)
class Report:
    """Counts of all splits."""

    splits: Mapping[str, SplitReport]  # "train", "valid", "test"
    limit: int  # tokens: data.max_length, or data.context of a language model
    remarks: tuple[str, ...] = ()  # on the form of the files

    def lines(self) -> list[str]:
        """The report as text."""
        out: list[str] = []
        for name, split in self.splits.items():
            first, *rest = _describe(split, self.limit)
            out += [f"{name}: {first}", *(f"{' ' * len(name)}  {line}" for line in rest)]
        return [*out, *self.remarks]

    def json(self) -> dict[str, Any]:
        """The report as JSON; `from_json` reads it."""
        splits = {name: asdict(split) for name, split in self.splits.items()}
        return {"limit": self.limit, "parts": splits, "remarks": list(self.remarks)}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Report:
        splits = {name: SplitReport(**split) for name, split in tree["parts"].items()}
        return cls(splits, tree["limit"], tuple(tree.get("remarks", ())))


def _describe(split: SplitReport, limit: int) -> list[str]:
    """The counts of a split in lines of less than 100 columns. What did not occur is not mentioned."""
    if split.classes is not None:
        return _describe_labelled(split, limit)
    return _describe_pairs(split, limit) if split.documents is None else _describe_text(split, limit)


def _describe_labelled(split: SplitReport, limit: int) -> list[str]:
    first = f"{_count(split.lines, 'text')} with {_count(split.classes or 0, 'label')}"
    if split.rows is not None:
        first += f"{_kept(split)}: {split.target_tokens or 0:,} tokens"
    return [
        first,
        *_mention("dropped", (split.empty, "empty")),
        *_mention(
            "kept, but worth a look",
            (split.cut, f"cut to {limit:,} tokens"),
            (split.duplicates, "duplicate{s}"),
            (split.two_labels, "with more than one label"),
            (split.in_training, "also in training"),
        ),
    ]


def _describe_pairs(split: SplitReport, limit: int) -> list[str]:
    first = _count(split.lines, "pair")
    if split.rows is not None:
        first += f"{_kept(split)}: {split.source_tokens:,} source and {split.target_tokens:,} target tokens"
    return [
        first,
        *_mention("dropped", (split.empty, "with an empty side"), (split.over_long, f"of more than {limit:,} tokens")),
        *_mention(
            "kept, but worth a look",
            (split.duplicates, "duplicate{s}"),
            (split.in_training, "source{s} also in training"),
        ),
        *_mention("kept, but of unlikely lengths", (split.outliers, f"pair{{s}} ({OUTLIER_RULE})")),
    ]


def _describe_text(split: SplitReport, limit: int) -> list[str]:
    assert split.documents is not None
    first = f"{_count(split.lines, 'line')} in {_count(split.documents, 'document')}"
    if split.rows is not None:
        first += f", {_count(split.target_tokens or 0, 'token')} in {_count(split.rows, 'window')} of at most {limit:,}"
    return [
        first,
        *_mention("dropped", (split.empty, "empty document{s}")),
        *_mention(
            "kept, but worth a look",
            (split.duplicates, "duplicate line{s}"),
            (split.in_training, "line{s} also in training"),
        ),
    ]


def _kept(split: SplitReport) -> str:
    return "" if split.rows == split.lines else f", {split.rows:,} of them kept"


def _mention(what: str, *counts: tuple[int | None, str]) -> list[str]:
    """A line with the counts above 0; no line if there are none. {s} in a text becomes the s of a plural."""
    said = [f"{number:,} {text.format(s='' if number == 1 else 's')}" for number, text in counts if number]
    return [f"{what}: {', '.join(said)}"] if said else []


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class Seen:
    """The 64-bit hashes of items: 16 MB for two million lines."""

    def __init__(self, key: Callable[[Any], int] = hash) -> None:
        self._hashes, self._key = array("q"), key

    def add(self, item: Hashable) -> None:
        self._hashes.append(self._key(item))

    def update(self, items: Iterable[Hashable]) -> None:
        self._hashes.extend(map(self._key, items))

    @property
    def count(self) -> int:
        return len(self._hashes)

    def duplicates(self) -> int:
        """The number of items that occurred before."""
        return self.count - len(np.unique(self.hashes()))

    def also_in(self, other: Seen) -> int:
        """The number of items that are also in the other."""
        return int(np.isin(self.hashes(), np.unique(other.hashes())).sum())

    def hashes(self) -> Array:
        """The hash of each item, in order."""
        return np.frombuffer(self._hashes, np.int64) if self._hashes else np.zeros(0, np.int64)
