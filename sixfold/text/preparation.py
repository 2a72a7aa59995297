"""The steps from text to arrays, for pairs and for the text of a language model: check, train tokenizers, tokenise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any, TypeVar

from sixfold.config import schema
from sixfold.config.schema import Data
from sixfold.core.ids import EOS
from sixfold.text.arrays import RowRange, RowWriter, open_examples
from sixfold.text.report import PartReport, Seen, count_outliers
from sixfold.text.sources import Pair, Source, Split, Stretch, pair_sources, text_sources
from sixfold.text.tokenizer import Tokenizer, Tokenizers
from sixfold.text.vocabulary import train_tokenizer

PARTS: tuple[Split, ...] = ("train", "valid", "test")
_CHUNK = 4096  # lines that are tokenised at once
_LARGEST_CHUNK = 1 << 21  # characters; lines may be long
_READING = "reading for the tokenizer"

ProgressCallback = Callable[[str, int, int | None], Any]  # what is being done, how much of it is done, of how much
T = TypeVar("T")


def is_empty(source: str, target: str) -> bool:
    """Whether a pair lacks a side: nothing but white space is nothing."""
    return not source.strip() or not target.strip()


class ParallelText:
    """Sources and targets."""

    labels: tuple[str, ...] = ()

    def __init__(self, data: Data, progress: ProgressCallback):
        self.data, self.progress = data, progress
        self.sources = {part: found for part in PARTS if (found := pair_sources(data, part))}

    def check(self) -> dict[str, PartReport]:
        """Read all there is. → what is known without tokens"""
        counts: dict[str, PartReport] = {}
        training: Seen | None = None
        for part, sources in self.sources.items():
            pairs, firsts, lines = Seen(), Seen(), 0
            for source, target in self._read(sources, f"checking {part}"):
                lines += 1
                if not is_empty(source, target):
                    firsts.add(source)
                    pairs.add((source, target))
            if not pairs.count:
                raise ValueError(f"data.{part}: each of {lines:,} pairs has an empty side: {_names(sources)}")
            counts[part] = PartReport(
                lines=lines,
                empty=lines - pairs.count,
                duplicates=pairs.duplicates(),
                in_training=None if training is None else firsts.also_in(training),
            )
            training = training or firsts
        return counts

    def _read(self, sources: Sequence[Source[Pair]], what: str) -> Iterator[Pair]:
        lines = chain.from_iterable(source.read() for source in sources)
        return _counted(lines, lambda done: self.progress(what, done, None))

    def train_tokenizers(self) -> Tokenizers:
        def side(which: int) -> Iterator[str]:
            return (pair[which] for pair in self._read(self.sources["train"], _READING))

        def both() -> Iterator[str]:
            return chain.from_iterable(self._read(self.sources["train"], _READING))

        kind, size = self.data.tokenizer, self.data.vocabulary
        if isinstance(kind, str) and not isinstance(size, schema.Vocabularies):
            joint = train_tokenizer(kind, both(), size)
            return Tokenizers(joint, joint)
        kinds = (kind, kind) if isinstance(kind, str) else (kind.source, kind.target)
        sizes = (size.source, size.target) if isinstance(size, schema.Vocabularies) else (size, size)
        return Tokenizers(*(train_tokenizer(kinds[i], side(i), sizes[i]) for i in (0, 1)))

    def encode(
        self, part: Split, counts: PartReport, tokenizers: Tokenizers, folder: Path
    ) -> tuple[dict[str, Any], PartReport]:
        """Write one part. → what `open_examples` needs, and the report with all counts"""
        sources, groups, long, done = self.sources[part], [], 0, 0
        with (
            RowWriter(folder, f"{part}.source", len(tokenizers.source)) as left,
            RowWriter(folder, f"{part}.target", len(tokenizers.target)) as right,
        ):
            for source in sources:
                before = right.rows
                for chunk in _chunks(source.read(), lambda pair: len(pair[0]) + len(pair[1])):
                    long += self._encode_chunk(chunk, tokenizers, left, right)
                    done += len(chunk)
                    self.progress(f"tokenising {part}", done, counts.lines)
                groups.append(RowRange(right.rows - before, source.weight))
        if not right.rows:
            raise ValueError(
                f"data.{part}: nothing is left, as {long:,} pairs have more than {self.data.max_length:,} tokens "
                f"on a side; raise data.max_length ({_names(sources)})"
            )
        arrays = {"source": left.described(), "target": right.described(), "groups": groups}
        examples = open_examples(folder, part, arrays)
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
        """→ how many pairs were too long"""
        chunk = [pair for pair in chunk if not is_empty(*pair)]
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


class PlainText:
    """The text of a language model."""

    labels: tuple[str, ...] = ()

    def __init__(self, data: Data, progress: ProgressCallback):
        if not isinstance(data.tokenizer, str) or isinstance(data.vocabulary, schema.Vocabularies):
            raise ValueError("a language model has one text: give one data.tokenizer and one data.vocabulary")
        self.kind, self.size = data.tokenizer, data.vocabulary
        self.data, self.progress = data, progress
        self.sources = {part: found for part in PARTS if (found := text_sources(data, part))}

    def check(self) -> dict[str, PartReport]:
        counts: dict[str, PartReport] = {}
        training: Seen | None = None
        for part, sources in self.sources.items():
            seen, lines, documents, empty = Seen(), 0, 0, 0
            something = False
            for text, ends in self._read(sources, f"checking {part}"):
                if text.strip():
                    seen.add(text.removesuffix("\n"))
                    something = True
                lines += not ends
                documents += ends and something
                empty += ends and not something
                something = something and not ends
            if not documents:
                raise ValueError(f"data.{part}: there is no text but spaces and empty lines in {_names(sources)}")
            in_training = None if training is None else seen.also_in(training)
            counts[part] = PartReport(
                lines=lines, documents=documents, empty=empty, duplicates=seen.duplicates(), in_training=in_training
            )
            training = training or seen
        return counts

    def _read(self, sources: Sequence[Source[Stretch]], what: str) -> Iterator[Stretch]:
        lines = chain.from_iterable(source.read() for source in sources)
        return _counted(lines, lambda done: self.progress(what, done, None))

    def train_tokenizers(self) -> Tokenizers:
        stretches = self._read(self.sources["train"], _READING)
        joint = train_tokenizer(self.kind, (_set_apart(self.kind, text) for text, _ in stretches if text), self.size)
        return Tokenizers(joint, joint)

    def encode(
        self, part: Split, counts: PartReport, tokenizers: Tokenizers, folder: Path
    ) -> tuple[dict[str, Any], PartReport]:
        """Write one part. Files of equal weight that follow each other are one stream, cut into windows."""
        groups, done = [], 0
        with RowWriter(folder, f"{part}.target", len(tokenizers.target)) as writer:
            for weight, sources in groupby(self.sources[part], lambda source: source.weight):
                rows, start = writer.rows, writer.tokens
                stretches = chain.from_iterable(source.read() for source in sources)
                for chunk in _chunks(_without_empty(stretches), lambda stretch: len(stretch[0])):
                    writer.stream(_encode_stretches(chunk, tokenizers.target))
                    done += sum(not ends for _, ends in chunk)
                    self.progress(f"tokenising {part}", done, counts.lines)
                writer.cut(start, self.data.context)
                groups.append(RowRange(writer.rows - rows, weight))
        arrays = {"target": writer.described(), "groups": groups}
        return arrays, replace(counts, rows=writer.rows, target_tokens=writer.tokens)


def _without_empty(stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    """Leave out documents of nothing but white space."""
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
    rows = tokenizer.encode_batch([_set_apart(tokenizer.kind, text) for text, _ in chunk])
    return [[*row, EOS] if ends else row for row, (_, ends) in zip(rows, chunk, strict=True)]


def _set_apart(kind: str, text: str) -> str:
    """The end of a line is a word of its own where words are what stands between spaces."""
    return f"{text[:-1]} \n" if kind in ("words", "symbols") and text.endswith("\n") and text != "\n" else text


def _chunks(lines: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Lines by the thousand, or fewer where they are long."""
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


def _counted(lines: Iterable[T], tell: Callable[[int], Any]) -> Iterator[T]:
    """The same lines; now and then `tell` hears how many have come."""
    done = 0
    for done, line in enumerate(lines, 1):
        yield line
        if done % _CHUNK == 0:
            tell(done)
    tell(done)


def _names(sources: Sequence[Source[Any]]) -> str:
    return "; ".join(source.name for source in sources)
