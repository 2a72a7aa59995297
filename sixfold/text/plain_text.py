"""Prepares plain text, for a language model: one stream of tokens, cut into windows. See `sixfold.text.preparation`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from sixfold.config import schema
from sixfold.config.schema import Data
from sixfold.core.ids import EOS
from sixfold.text.arrays import RowRange, RowWriter
from sixfold.text.hashed_files import HashedFiles
from sixfold.text.preparation import (
    SPLITS,
    ProgressCallback,
    Reference,
    check_splits,
    divided_counts,
    finish_training,
    in_chunks,
    in_order,
    names_of,
)
from sixfold.text.report import Seen, SplitReport
from sixfold.text.sources import Source, Split, Stretch, text_sources
from sixfold.text.tokenizer import Tokenizer, Tokenizers
from sixfold.text.validation_split import CutPoints, HeldOutEnds, characters_to_hold_out, described, wants_split
from sixfold.text.vocabulary import TokenizerTrainer


class PlainText:
    """Plain text, for a language model."""

    labels: tuple[str, ...] = ()
    remarks: Sequence[str] = ()

    def __init__(self, data: Data, progress: ProgressCallback):
        if not isinstance(data.tokenizer, str) or isinstance(data.vocabulary, schema.Vocabularies):
            raise ValueError("a language model has one text: give one data.tokenizer and one data.vocabulary")
        self.kind, self.size = data.tokenizer, data.vocabulary
        self.data, self.progress = data, progress
        self.files = HashedFiles()
        self.sources = {split: found for split in SPLITS if (found := text_sources(data, split))}
        self._divided: dict[str, SplitReport] = {}  # estimates, until the text is read again
        self._training: Seen | None = None  # the lines of a divided training text

    def check(self, tokenizers: Tokenizers | None = None) -> tuple[dict[str, SplitReport], Tokenizers]:
        """Read all files. → the counts that need no tokens, and the tokenizers"""
        trainers = [] if tokenizers else [TokenizerTrainer(self.kind, self.size)]
        counts = check_splits(self.sources, lambda each: self._check_split(each, trainers if each == "train" else []))
        return in_order({**counts, **self._divided}), tokenizers or finish_training(trainers, self.progress)

    def _check_split(self, split: Split, trainers: Sequence[TokenizerTrainer]) -> tuple[SplitReport, Seen]:
        found, places = _Documents(), [CutPoints() for _ in self.sources[split]]
        watched = (place.watch(self._read([source])) for place, source in zip(places, self.sources[split], strict=True))
        for chunk in in_chunks(chain.from_iterable(watched), _length_of_stretch):
            found.update(chunk)
            for trainer in trainers:
                trainer.update(_set_ends_apart(self.kind, [text for text, _ in chunk if text]))
            self.progress(f"checking {split}", found.lines, None)
        if not found.documents:
            raise ValueError(f"data.{split}: there are only spaces and empty lines in {names_of(self.sources[split])}")
        if split == "train" and wants_split(self.data):
            self._hold_out(found.report(), places)
        return found.report(), found.seen

    def _hold_out(self, counts: SplitReport, places: Sequence[CutPoints]) -> None:
        """Divide each file of the training text."""
        characters = sum(place.length for place in places)
        share = characters_to_hold_out(self.data, characters) / characters
        cuts = [place.before_last(round(share * place.length)) for place in places]
        held = sum(place.length - cut for place, cut in zip(places, cuts, strict=True))
        self.remarks = [described(held, characters, "characters", "the end of each file")]
        if held:
            lines = sum(place.lines_after(cut) for place, cut in zip(places, cuts, strict=True))
            self._divided = divided_counts(counts, lines, 0)
            self.sources = {**self.sources, **HeldOutEnds(cuts).sources(self.sources["train"])}

    def _read(self, sources: Iterable[Source[Stretch]]) -> Iterator[Stretch]:
        return chain.from_iterable(source.read(self.files.open) for source in sources)

    def references(self) -> list[Reference]:
        """A language model has none."""
        return []

    def encode(
        self, split: Split, counts: SplitReport, tokenizers: Tokenizers, folder: Path
    ) -> tuple[dict[str, Any], SplitReport]:
        """Write one split. Consecutive files of equal weight are one stream, cut into windows."""
        groups, done, found, size = [], 0, _Documents(), 0
        with RowWriter(folder, f"{split}.target", len(tokenizers.target)) as writer:
            for weight, sources in groupby(self.sources[split], lambda source: source.weight):
                rows, start = writer.rows, writer.tokens
                for chunk in in_chunks(_without_empty(self._read(sources)), _length_of_stretch):
                    writer.stream(_encode_stretches(chunk, tokenizers.target))
                    done += sum(not ends for _, ends in chunk)
                    if self._divided:
                        found.update(chunk)
                    if split == "valid":
                        size += sum(len(text.encode()) for text, _ in chunk)
                    self.progress(f"tokenising {split}", done, counts.lines)
                writer.cut(start, self.data.context)
                groups.append(RowRange(writer.rows - rows, weight))
        arrays = {"target": writer.described(), "groups": groups}
        if self._divided:
            counts, self._training = found.recounted(counts, self._training), found.seen
        return arrays, replace(counts, rows=writer.rows, target_tokens=writer.tokens, bytes=size or None)


class _Documents:
    """Counts the documents in a sequence of stretches, and collects hashes of their lines."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.lines, self.documents, self._empty = 0, 0, 0
        self._something = False  # whether the current document has text

    def update(self, stretches: Iterable[Stretch]) -> None:
        for text, ends in stretches:
            if text.strip():
                self.seen.add(text.removesuffix("\n"))
                self._something = True
            if ends:
                self.documents += self._something
                self._empty += not self._something
                self._something = False
            else:
                self.lines += 1

    def report(self) -> SplitReport:
        duplicates = self.seen.duplicates()
        return SplitReport(lines=self.lines, documents=self.documents, empty=self._empty, duplicates=duplicates)

    def recounted(self, counts: SplitReport, training: Seen | None) -> SplitReport:
        """The counts of a split of a divided text, whose lines are here; `training` is None for the training text."""
        also = None if training is None else self.seen.also_in(training)
        return replace(self.report(), empty=counts.empty, in_training=also)


def _length_of_stretch(stretch: Stretch) -> int:
    return len(stretch[0])


def _without_empty(stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    """Leave out documents that are only white space."""
    held: list[Stretch] = []
    begun = False
    for text, ends in stretches:
        if begun or text.strip():
            yield from held
            yield text, ends
            held, begun = [], not ends
        else:
            held.append((text, ends))
            held = [] if ends else held


def _encode_stretches(chunk: list[Stretch], tokenizer: Tokenizer) -> list[list[int]]:
    rows = tokenizer.encode_batch(_set_ends_apart(tokenizer.kind, [text for text, _ in chunk]))
    return [[*row, EOS] if ends else row for row, (_, ends) in zip(rows, chunk, strict=True)]


def _set_ends_apart(kind: str, texts: list[str]) -> list[str]:
    """Make line ends separate words, for the tokenizers that split at spaces."""
    if kind not in ("words", "symbols"):
        return texts
    return [f"{text[:-1]} \n" if text.endswith("\n") and text != "\n" else text for text in texts]
