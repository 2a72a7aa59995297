"""A dictionary of words, for unknown words in outputs: read from a file, or learned from pairs of texts.

The file has a line for each source word: the word, a tab, and the target word. To learn one, a model reads both texts
of each pair; its attention aligns each target word with a source word. A source word gets the target word with which it
was aligned most often, if that was often enough.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from sixfold.core.ids import EOS
from sixfold.core.quote import quoted
from sixfold.decoding.alignment import align, looks, words_of
from sixfold.disk.atomic import write_text
from sixfold.models.model import Model, evaluating
from sixfold.text.lines import read_lines
from sixfold.text.sources import Pair
from sixfold.text.tokenizer import Tokenizer, Tokenizers

LEAST, SHARE = 2, 0.5  # of a source word's alignments, those with its target word: their number and their share


def read_dictionary(path: str | Path, tokenizer: Tokenizer) -> dict[str, str]:
    """Source word → target word. `tokenizer` is the one of the outputs."""
    check_unknown_words(tokenizer, "a dictionary")
    found: dict[str, str] = {}
    for number, line in enumerate(read_lines(Path(path)), 1):
        source, *more = line.removesuffix("\n").removesuffix("\r").split("\t")
        where = f"{path}, line {number}"
        if len(more) != 1 or not source or " " in source or not more[0].strip():
            raise ValueError(f"{where}: expected a source word, a tab and a target word, got {quoted(line)}")
        if source in found:
            raise ValueError(f"{where}: {quoted(source)} is in an earlier line, too; leave one of them out")
        found[source] = more[0]
    return found


def check_unknown_words(tokenizer: Tokenizer, what: str) -> None:
    """Raise a ValueError if no word can be unknown in the outputs."""
    if tokenizer.spells:
        raise ValueError(
            f"{what} has no use here: outputs are spelled by a tokenizer of kind {tokenizer.kind}, so no word can be "
            f"unknown (it can with data.tokenizer words or symbols)"
        )


def write_dictionary(path: Path, dictionary: Mapping[str, str]) -> None:
    """Write a file that `read_dictionary` reads."""
    write_text(path, "".join(f"{source}\t{target}\n" for source, target in dictionary.items()))


def learn_dictionary(
    model: Model, tokenizers: Tokenizers, chunks: Iterable[Sequence[Pair]], max_length: int
) -> dict[str, str]:
    """The dictionary of pairs of texts, sorted. Pairs with more tokens than `max_length` on a side are left out."""
    check_unknown_words(tokenizers.target, "a dictionary")
    counts = defaultdict[str, Counter[str]](Counter)
    with evaluating(model):
        for chunk in chunks:
            for source, target in _aligned_words(model, tokenizers, chunk, max_length):
                counts[source][target] += 1
    found = {word: _usual(targets) for word, targets in sorted(counts.items())}
    return {word: target for word, target in found.items() if target is not None}


def _usual(targets: Counter[str]) -> str | None:
    """The most frequent word, if it is frequent enough."""
    ((word, number),) = targets.most_common(1)
    return word if number >= LEAST and number >= SHARE * targets.total() else None


def _aligned_words(model: Model, tokenizers: Tokenizers, pairs: Sequence[Pair], max_length: int) -> Iterator[Pair]:
    """Each target word, after the source word that it is aligned with."""
    sources = tokenizers.source.encode_batch(source for source, _ in pairs)
    targets = tokenizers.target.encode_batch(target for _, target in pairs)
    rows = [row for row in zip(sources, targets, pairs, strict=True) if max(len(row[0]), len(row[1])) <= max_length]
    rows.sort(key=lambda row: (len(row[0]), len(row[1])))
    seen = looks([model], [([*source, EOS], target) for source, target, _ in rows])
    for (source, target, pair), look in zip(rows, seen, strict=True):
        if look is None:
            raise ValueError("this model has no cross-attention over each source token, by which words can be aligned")
        texts = [words_of(tokenizer, text) for tokenizer, text in zip(tokenizers, pair, strict=True)]
        for written, read in align(look, [*source, EOS], target, tokenizers).words:
            found = texts[0][read], texts[1][written]
            if not any(mark in word for word in found for mark in "\t\n\r"):  # which the file could not hold
                yield found
