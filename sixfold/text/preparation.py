"""Prepares text in two passes over the files: here pairs, and what all forms of text share.

1   check       reads all splits: hashes the files, counts, and trains tokenizers if none are given
2   encode      reads the training and validation text again: tokenises it, and collects references
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from sixfold.config import schema
from sixfold.config.schema import Data
from sixfold.text.arrays import Array, RowRange, RowWriter, open_examples
from sixfold.text.hashed_files import HashedFiles
from sixfold.text.report import Seen, SplitReport, count_outliers
from sixfold.text.sources import Pair, Source, Split, pair_sources
from sixfold.text.tokenizer import Tokenizers
from sixfold.text.validation_split import (
    HeldOutRows,
    choose,
    described,
    key_of,
    rows_to_hold_out,
    wants_split,
)
from sixfold.text.vocabulary import TokenizerTrainer

SPLITS: tuple[Split, ...] = ("train", "valid", "test")
_CHUNK = 4096  # lines that are checked or tokenised at once
_LARGEST_CHUNK = 1 << 21  # characters; lines may be long

ProgressCallback = Callable[[str, int, int | None], Any]  # (name of the work, done, total)
T = TypeVar("T")


class Reference(NamedTuple):
    """An input text, and its correct outputs."""

    source: str
    targets: tuple[str, ...]


class Preparation(Protocol):
    """One form of text. Every file is opened by `files.open`, at most twice, and read to its end."""

    files: HashedFiles
    labels: tuple[str, ...]  # of the classes, after the first pass; empty if texts have no labels
    remarks: Sequence[str]  # notes and warnings for the user

    def __init__(self, data: Data, progress: ProgressCallback): ...

    def check(self, tokenizers: Tokenizers | None = None) -> tuple[dict[str, SplitReport], Tokenizers]:
        """The first pass. Tokenizers are trained if none are given. → the counts of each split, and the tokenizers"""

    def encode(
        self, split: Split, counts: SplitReport, tokenizers: Tokenizers, folder: Path
    ) -> tuple[dict[str, Any], SplitReport]:
        """The second pass over one split. → the description for `open_examples`, and the report with all counts"""

    def references(self) -> list[Reference]:
        """The raw validation text, to score against, once `encode` has read it."""


def without_empty_sides(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs whose sides both have more than white space."""
    return [pair for pair in pairs if pair[0].strip() and pair[1].strip()]


class ReferenceCollector:
    """Merges pairs with equal sources into one reference with several targets."""

    def __init__(self) -> None:
        self._targets: dict[str, dict[str, None]] = {}

    def update(self, pairs: Iterable[Pair]) -> None:
        """Add pairs, none of which may have an empty side."""
        for source, target in pairs:
            self._targets.setdefault(source, {})[target] = None

    def references(self) -> list[Reference]:
        return [Reference(source, tuple(targets)) for source, targets in self._targets.items()]


class ParallelText:
    """Sources and targets."""

    labels: tuple[str, ...] = ()
    remarks: Sequence[str] = ()

    def __init__(self, data: Data, progress: ProgressCallback):
        self.data, self.progress = data, progress
        self.files = HashedFiles()
        self.sources = {split: found for split in SPLITS if (found := pair_sources(data, split))}
        self._key: Callable[[str], int] = key_of(data.seed) if wants_split(data) else hash  # of a source
        self._divided: dict[str, SplitReport] = {}  # the counts of training and validation text, if one is divided
        self._references = ReferenceCollector()

    def check(self, tokenizers: Tokenizers | None = None) -> tuple[dict[str, SplitReport], Tokenizers]:
        """Read all files. → the counts that need no tokens, and the tokenizers"""
        trainers = [] if tokenizers else self._trainers()
        counts = check_splits(self.sources, lambda each: self._check_split(each, trainers if each == "train" else []))
        return in_order({**counts, **self._divided}), tokenizers or finish_training(trainers, self.progress)

    def _check_split(self, split: Split, trainers: Sequence[TokenizerTrainer]) -> tuple[SplitReport, Seen]:
        pairs, firsts, lines = Seen(), Seen(self._key), 0
        for chunk in self._chunks(self.sources[split]):
            kept = without_empty_sides(chunk)
            firsts.update(source for source, _ in kept)
            pairs.update(kept)
            _learn_from_pairs(trainers, chunk)
            lines += len(chunk)
            self.progress(f"checking {split}", lines, None)
        if not pairs.count:
            raise ValueError(
                f"data.{split}: each of {lines:,} pairs has an empty side: {names_of(self.sources[split])}"
            )
        counts = SplitReport(lines=lines, empty=lines - pairs.count, duplicates=pairs.duplicates())
        if split == "train" and wants_split(self.data):
            self._hold_out(counts, pairs.hashes(), firsts.hashes())
        return counts, firsts

    def _hold_out(self, counts: SplitReport, pairs: Array, sources: Array) -> None:
        """Divide the training text, of which these are the hashes of pairs and sources."""
        chosen = choose(sources, rows_to_hold_out(self.data, len(sources)))
        held = pairs[np.isin(sources, [*chosen])]
        self.remarks = [described(len(held), len(sources), "pairs", f"chosen by data.seed {self.data.seed}")]
        if len(held):
            self._divided = divided_counts(counts, len(held), len(held) - len(np.unique(held)))
            held_out = HeldOutRows[Pair](chosen, lambda pair: self._key(pair[0]))
            self.sources = {**self.sources, **held_out.sources(self.sources["train"])}

    def training_pairs(self) -> Iterator[list[Pair]]:
        """After `check`: the pairs that are trained on, several at a time; none with an empty side."""
        return map(without_empty_sides, self._chunks(self.sources["train"]))

    def _chunks(self, sources: Iterable[Source[Pair]]) -> Iterator[list[Pair]]:
        pairs = chain.from_iterable(source.read(self.files.open) for source in sources)
        return in_chunks(pairs, lambda pair: len(pair[0]) + len(pair[1]))

    def _trainers(self) -> list[TokenizerTrainer]:
        """The trainers: one for both sides, or one for each side."""
        kind, size = self.data.tokenizer, self.data.vocabulary
        if isinstance(kind, str) and not isinstance(size, schema.Vocabularies):
            return [TokenizerTrainer(kind, size)]
        kinds = (kind, kind) if isinstance(kind, str) else (kind.source, kind.target)
        sizes = (size.source, size.target) if isinstance(size, schema.Vocabularies) else (size, size)
        return [*map(TokenizerTrainer, kinds, sizes)]

    def references(self) -> list[Reference]:
        """Pairs with an empty side are left out, long ones are kept."""
        return self._references.references()

    def encode(
        self, split: Split, counts: SplitReport, tokenizers: Tokenizers, folder: Path
    ) -> tuple[dict[str, Any], SplitReport]:
        """Write one split. → the description for `open_examples`, and the report with all counts"""
        sources, groups, long, done = self.sources[split], [], 0, 0
        with (
            RowWriter(folder, f"{split}.source", len(tokenizers.source)) as left,
            RowWriter(folder, f"{split}.target", len(tokenizers.target)) as right,
        ):
            for source in sources:
                before = right.rows
                for chunk in self._chunks([source]):
                    kept = without_empty_sides(chunk)
                    long += self._encode_chunk(kept, tokenizers, left, right)
                    if split == "valid":
                        self._references.update(kept)
                    done += len(chunk)
                    self.progress(f"tokenising {split}", done, counts.lines)
                groups.append(RowRange(right.rows - before, source.weight))
        if not right.rows:
            raise ValueError(
                f"data.{split}: no pair remains, because {long:,} pairs have more than {self.data.max_length:,} tokens "
                f"on a side; raise data.max_length ({names_of(sources)})"
            )
        arrays = {"source": left.described(), "target": right.described(), "groups": groups}
        examples = open_examples(folder, split, arrays)
        assert examples.source is not None
        return arrays, replace(
            counts,
            empty=counts.lines - right.rows - long,
            over_long=long,
            rows=right.rows,
            outliers=count_outliers(examples.source.lengths, examples.target.lengths),
            source_tokens=left.tokens,
            target_tokens=right.tokens,
        )

    def _encode_chunk(self, chunk: list[Pair], tokenizers: Tokenizers, left: RowWriter, right: RowWriter) -> int:
        """→ the number of pairs that were too long"""
        rows = zip(
            tokenizers.source.encode_batch([source for source, _ in chunk]),
            tokenizers.target.encode_batch([target for _, target in chunk]),
            strict=True,
        )
        found = [row for row in rows if row[0] and row[1]]
        kept = [row for row in found if max(len(row[0]), len(row[1])) <= self.data.max_length]
        left.write([row[0] for row in kept])
        right.write([row[1] for row in kept])
        return len(found) - len(kept)


def divided_counts(counts: SplitReport, held: int, duplicates: int) -> dict[str, SplitReport]:
    """The counts of a training text, divided: so many rows are held out, some of them duplicates of each other."""
    rest = replace(counts, lines=counts.lines - held, duplicates=counts.duplicates - duplicates)
    return {"train": rest, "valid": SplitReport(lines=held, duplicates=duplicates, in_training=0)}


def in_order(counts: Mapping[str, SplitReport]) -> dict[str, SplitReport]:
    """The counts in the order training, validation, test."""
    return {split: counts[split] for split in SPLITS if split in counts}


def check_splits(
    splits: Iterable[Split], check_split: Callable[[Split], tuple[SplitReport, Seen]]
) -> dict[str, SplitReport]:
    """Check one split after another, training first, and count the lines that also occur in training."""
    counts: dict[str, SplitReport] = {}
    training: Seen | None = None
    for split in splits:
        counts[split], seen = check_split(split)
        if training is not None:
            counts[split] = replace(counts[split], in_training=seen.also_in(training))
        training = training or seen
    return counts


def _learn_from_pairs(trainers: Sequence[TokenizerTrainer], pairs: Iterable[Pair]) -> None:
    """Give a single trainer both sides, or each of two trainers one side."""
    if len(trainers) == 1:
        trainers[0].update(chain.from_iterable(pairs))
    elif trainers:
        for trainer, texts in zip(trainers, zip(*pairs, strict=True), strict=True):
            trainer.update(texts)


def finish_training(trainers: Sequence[TokenizerTrainer], progress: ProgressCallback) -> Tokenizers:
    """The tokenizers of one trainer for both sides, or of one for each."""
    trained = []
    for number, trainer in enumerate(trainers):
        progress("training tokenizers", number, len(trainers))
        trained.append(trainer.finish())
    return Tokenizers(trained[0], trained[-1])


def in_chunks(lines: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Lists of at most 4,096 lines; fewer if they are long."""
    chunk: list[T] = []
    characters = 0
    for line in lines:
        chunk.append(line)
        characters += size(line)
        if len(chunk) >= _CHUNK or characters >= _LARGEST_CHUNK:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def names_of(sources: Sequence[Source[Any]]) -> str:
    return "; ".join(source.name for source in sources)


def pair_references(data: Data, split: Split) -> list[Reference]:
    """The raw text of a split, to score against. Equal sources are merged.

    Pairs with an empty side are left out, long ones are kept.
    """
    collector = ReferenceCollector()
    for item in pair_sources(data, split):
        collector.update(without_empty_sides(item.read()))
    return collector.references()


def no_references(data: Data, split: Split) -> list[Reference]:
    """No references: plain text is scored by its likelihood only."""
    return []
