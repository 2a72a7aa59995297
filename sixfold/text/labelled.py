"""Prepares tables of texts and labels. `sixfold.text.preparation` prepares the other forms of text.

    train.target.ids, .offsets   the tokens of each text
    train.label.values           the index of each text's label in `labels`

Each file is read twice: to check it and train the tokenizer, and to tokenise it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sixfold.config.schema import Data, Vocabularies
from sixfold.core.names import nearest
from sixfold.core.quote import quoted
from sixfold.text.arrays import Array, ColumnWriter, RowRange, RowWriter
from sixfold.text.hashed_files import HashedFiles
from sixfold.text.labels import checked_labels
from sixfold.text.preparation import SPLITS, ProgressCallback, Reference, divided_counts, finish_training, in_order
from sixfold.text.report import SplitReport
from sixfold.text.sources import Source, Split
from sixfold.text.tables import Row, described_columns, table_sources
from sixfold.text.tokenizer import Tokenizer, Tokenizers
from sixfold.text.validation_split import (
    HeldOutRows,
    choose_by_label,
    described,
    key_of,
    rows_to_hold_out,
    wants_split,
)
from sixfold.text.vocabulary import TokenizerTrainer

_CHUNK = 256  # rows that are tokenised at once; each may have megabytes
_SUSPICIOUS = 10  # with at least this number of rows, different labels in all rows are an error
_SHOWN = 5  # most examples in a remark
_LISTED = 20  # most labels that a message lists


class LabelledText:
    """Texts and their labels.

    The labels are those of the training text, unless those of an existing model are given. After `check`, `labels` has
    them in order, and `remarks` has remarks on the tables.
    """

    def __init__(self, data: Data, progress: ProgressCallback, labels: Sequence[str] | None = None):
        if not isinstance(data.tokenizer, str) or isinstance(data.vocabulary, Vocabularies):
            raise ValueError("texts with labels have one tokenizer: give one data.tokenizer and one data.vocabulary")
        self.kind, self.size = data.tokenizer, data.vocabulary
        self.data, self.progress = data, progress
        self.sources = {split: found for split in SPLITS if (found := table_sources(data, split))}
        self.labels: tuple[str, ...] = () if labels is None else tuple(checked_labels(labels))
        self.remarks: Sequence[str] = ()
        self.files = HashedFiles()
        self._key: Callable[[str], int] = key_of(data.seed) if wants_split(data) else hash  # of a text
        self._references: list[Reference] = []

    def check(self, tokenizers: Tokenizers | None = None) -> tuple[dict[str, SplitReport], Tokenizers]:
        """The first pass over all files. → the counts known before tokenising, and the tokenizers"""
        trainers = [] if tokenizers else [TokenizerTrainer(self.kind, self.size)]
        counts = self._check_splits(trainers)
        return counts, tokenizers or finish_training(trainers, self.progress)

    def _check_splits(self, trainers: Sequence[TokenizerTrainer]) -> dict[str, SplitReport]:
        self.remarks = self._where_columns_are()
        counts: dict[str, SplitReport] = {}
        training: _SeenRows | None = None
        for split in [*self.sources]:
            seen = self._check_split(split, trainers if split == "train" else [])
            counts[split] = SplitReport(
                lines=seen.rows + seen.empty,
                empty=seen.empty,
                duplicates=seen.duplicates(),
                in_training=None if training is None else seen.also_in(training),
                classes=len(seen.labels),
                two_labels=seen.two_labels(),
            )
            training = training or seen
            self.remarks = [*self.remarks, *_remarks(split, seen)]
            if split == "train" and wants_split(self.data):
                counts |= self._hold_out(counts[split], seen)
        return in_order(counts)

    def _hold_out(self, counts: SplitReport, seen: _SeenRows) -> dict[str, SplitReport]:
        """Divide the training text. → the counts of both splits"""
        chosen = seen.choose(rows_to_hold_out(self.data, seen.rows))
        held = seen.only(chosen)
        how = f"chosen by data.seed {self.data.seed} within each label"
        self.remarks = [*self.remarks, described(held.rows, seen.rows, "texts", how)]
        if not held.rows:
            return {}
        rows = HeldOutRows[Row](chosen, lambda row: self._key(row.text))
        self.sources = {**self.sources, **rows.sources(self.sources["train"])}
        divided = divided_counts(counts, held.rows, held.duplicates())
        return {**divided, "valid": replace(divided["valid"], classes=len(held.labels), two_labels=0)}

    def _where_columns_are(self) -> list[str]:
        """Notes on the columns that were chosen because none were given, and in which files."""
        by_way: dict[str, list[Path]] = {}
        for path in dict.fromkeys(path for split in self.sources.values() for source in split for path in source.files):
            by_way.setdefault(described_columns(path, self.data.source, self.data.target), []).append(path)
        by_way.pop("", None)
        return [f"note: {_several(paths)}: {way}" for way, paths in by_way.items()]

    def _check_split(self, split: Split, trainers: Sequence[TokenizerTrainer]) -> _SeenRows:
        seen = _SeenRows(self._key)
        index = _index_of(self.labels)
        for source in self.sources[split]:
            seen.begin_file(_path(source))
            for chunk in _chunks(source.read(self.files.open)):
                rows = _with_text(chunk)
                if index:
                    _classes(rows, index, source.name)
                seen.update(rows)
                seen.empty += len(chunk) - len(rows)
                for trainer in trainers:
                    trainer.update(row.text for row in rows)
                self.progress(f"checking {split}", seen.rows + seen.empty, None)
        if not seen.rows:
            raise ValueError(f"data.{split}: each of {seen.empty:,} rows has an empty text: {self._names(split)}")
        if split == "train":
            self._find_labels(seen)
        return seen

    def _find_labels(self, seen: _SeenRows) -> None:
        """Take the labels of the training text, sorted, unless they were given; refuse implausible ones."""
        if len(seen.labels) == 1:
            (only,) = seen.labels
            raise ValueError(
                f"data.train: each of {seen.rows:,} texts has the label {quoted(only)}, but training needs at least "
                f"two labels: {self._names('train')}"
            )
        if len(seen.labels) == seen.rows >= _SUSPICIOUS:
            raise ValueError(
                f"data.train: each of {seen.rows:,} texts has a different label, such as {quoted(seen.label(0))}; is "
                f"this the right column? data.source names the text, data.target the label: {self._names('train')}"
            )
        self.labels = self.labels or tuple(sorted(seen.labels))

    def references(self) -> list[Reference]:
        """Each validation text with its label; equal texts are not merged, as each row counts."""
        return self._references

    def encode(
        self, split: Split, counts: SplitReport, tokenizers: Tokenizers, folder: Path
    ) -> tuple[dict[str, Any], SplitReport]:
        """Write one split. → the description for `open_examples`, and the report with all counts"""
        tokenizer, index, groups, cut, done = tokenizers.source, _index_of(self.labels), [], 0, 0
        with (
            RowWriter(folder, f"{split}.target", len(tokenizer)) as texts,
            ColumnWriter(folder, f"{split}.label", len(self.labels)) as classes,
        ):
            for source in self.sources[split]:
                before = texts.rows
                for chunk in _chunks(source.read(self.files.open)):
                    rows = _with_text(chunk)
                    if split == "valid":
                        self._references += [Reference(row.text, (row.label,)) for row in rows]
                    classes.write(_classes(rows, index, source.name))
                    cut += self._encode_texts([row.text for row in rows], tokenizer, texts)
                    done += len(chunk)
                    self.progress(f"tokenising {split}", done, counts.lines)
                groups.append(RowRange(texts.rows - before, source.weight))
        arrays = {"target": texts.described(), "columns": {"label": classes.described()}, "groups": groups}
        return arrays, replace(counts, empty=done - texts.rows, cut=cut, rows=texts.rows, target_tokens=texts.tokens)

    def _encode_texts(self, texts: Sequence[str], tokenizer: Tokenizer, writer: RowWriter) -> int:
        """→ the number of texts that were too long and are truncated"""
        rows, most = tokenizer.encode_batch(texts), self.data.max_length
        writer.write([row[:most] for row in rows])
        return sum(len(row) > most for row in rows)

    def _names(self, split: Split) -> str:
        return "; ".join(source.name for source in self.sources[split])


def _with_text(rows: Iterable[Row]) -> list[Row]:
    """The rows whose text is more than white space."""
    return [row for row in rows if row.text.strip()]


def _chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while chunk := [*islice(rows, _CHUNK)]:
        yield chunk


def _path(source: Source[Row]) -> Path:
    (path,) = source.files
    return path


def _several(paths: Sequence[Path]) -> str:
    return f"{paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}"


def _index_of(labels: Sequence[str]) -> dict[str, int]:
    return {label: index for index, label in enumerate(labels)}


def _classes(rows: Sequence[Row], index: Mapping[str, int], name: str) -> list[int]:
    """The index of each row's label. An unknown label is an error that names the line."""
    for row in rows:
        if row.label not in index:
            near = nearest(row.label, index)
            hint = "" if near is None else f"did you mean {quoted(near)}? "
            raise ValueError(
                f"{name}, line {row.line}: the label {quoted(row.label)} does not occur in training; {hint}there are "
                f"{_listed([*index])}"
            )
    return [index[row.label] for row in rows]


def _listed(labels: Sequence[str]) -> str:
    more = len(labels) - _LISTED
    return ", ".join(map(quoted, labels[:_LISTED])) + (f" and {more:,} more" if more > 0 else "")


# Statistics of the rows ----------------------------------------------------------------------------------------------


class _SeenRows:
    """The rows of one split in 20 bytes each: a 64-bit hash of the text, the label, and the line."""

    def __init__(self, key: Callable[[str], int]) -> None:
        self.labels: dict[str, int] = {}  # numbered by first occurrence
        self._key = key  # of a text
        self.empty = 0  # rows without a text, which are not stored
        self._texts, self._labels, self._lines = array("q"), array("i"), array("q")
        self._files: list[Path] = []
        self._starts: list[int] = []  # the first row of each file

    @property
    def rows(self) -> int:
        return len(self._texts)

    def begin_file(self, path: Path) -> None:
        self._files.append(path)
        self._starts.append(self.rows)

    def update(self, rows: Iterable[Row]) -> None:
        for text, label, line in rows:
            self._texts.append(self._key(text))
            self._labels.append(self.labels.setdefault(label, len(self.labels)))
            self._lines.append(line)

    def where(self, row: int) -> str:
        return f"{self._files[bisect_right(self._starts, row) - 1]}, line {self._lines[row]}"

    def label(self, row: int) -> str:
        return [*self.labels][self._labels[row]]

    def also_in(self, other: _SeenRows) -> int:
        """The number of texts that occur in the other split, too."""
        return int(np.isin(np.array(self._texts), np.unique(np.array(other._texts))).sum())

    def duplicates(self) -> int:
        """The number of rows whose text and label occurred before."""
        _, same_text, same_label = self._neighbours()
        return int((same_text & same_label).sum())

    def two_labels(self) -> int:
        """The number of texts that have more than one label."""
        order, same_text, same_label = self._neighbours()
        return len(np.unique(np.array(self._texts)[order[1:][same_text & ~same_label]]))

    def contradictions(self, most: int) -> list[tuple[int, int]]:
        """Pairs of rows with the same text and different labels, ordered by the second row."""
        order, same_text, same_label = self._neighbours()
        at = np.flatnonzero(same_text & ~same_label)
        pairs = sorted((sorted((int(order[i]), int(order[i + 1]))) for i in at), key=lambda pair: pair[1])
        return [(first, second) for first, second in pairs[:most]]

    def choose(self, most: int) -> frozenset[int]:
        """The keys of texts to hold out. A text with several labels would be on both sides."""
        texts, labels = np.array(self._texts), np.array(self._labels)
        order, same_text, same_label = self._neighbours()
        clear = ~np.isin(texts, texts[order[1:][same_text & ~same_label]])
        by_name = np.argsort(np.argsort([*self.labels]))  # the same, whatever the order of the files
        return choose_by_label(texts[clear], by_name[labels[clear]], most)

    def only(self, keys: frozenset[int]) -> _SeenRows:
        """The rows of these texts, without their files and lines."""
        found, labels = _SeenRows(self._key), np.array(self._labels)
        here = np.isin(np.array(self._texts), [*keys])
        found._texts, found._labels = array("q", np.array(self._texts)[here]), array("i", labels[here])
        found.labels = {label: number for label, number in self.labels.items() if number in labels[here]}
        return found

    def single(self) -> list[int]:
        """The rows whose label occurs only once."""
        labels = np.array(self._labels)
        rare = np.flatnonzero(np.bincount(labels) == 1)
        return np.flatnonzero(np.isin(labels, rare)).tolist()

    def _neighbours(self) -> tuple[Array, Array, Array]:
        """Rows sorted by text, then label; and for each but the first, whether text and label equal the previous."""
        texts, labels = np.array(self._texts), np.array(self._labels)
        order = np.lexsort((labels, texts))
        same = [each[order][1:] == each[order][:-1] for each in (texts, labels)]
        return order, same[0], same[1]


def _remarks(split: Split, seen: _SeenRows) -> list[str]:
    """Warnings about contradictory and rare labels."""
    found = []
    if pairs := seen.contradictions(1):
        ((first, second),) = pairs
        found.append(
            f"warning: data.{split}: {_counted(seen.two_labels(), 'text occurs', 'texts occur')} with more than one "
            f"label, such as "
            f"{seen.where(first)} ({quoted(seen.label(first))}) and {seen.where(second)} ({quoted(seen.label(second))})"
        )
    if split == "train" and (rows := seen.single()):
        shown = "; ".join(f"{quoted(seen.label(row))} in {seen.where(row)}" for row in rows[:_SHOWN])
        more = f"; and {len(rows) - _SHOWN:,} more" if len(rows) > _SHOWN else ""
        found.append(f"warning: {_counted(len(rows), 'label has', 'labels have')} a single example: {shown}{more}")
    return found


def _counted(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"


def label_references(data: Data, split: Split) -> list[Reference]:
    """Each text of a split with its label, to score against: those that `encode` writes, in the same order."""
    rows = (row for source in table_sources(data, split) for row in _with_text(source.read()))
    return [Reference(row.text, (row.label,)) for row in rows]
