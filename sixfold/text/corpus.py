"""From files to examples: all text is checked before anything is written, then read again and tokenised into arrays.

data/index.json          what is here, and of which text and tokenizers it was made
data/train.source.ids …  the arrays, see `sixfold.text.arrays`
data/references.jsonl    the validation text as it is, to score against
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sixfold.config.schema import Config, Data
from sixfold.core.quote import quoted
from sixfold.disk.atomic import new_directory
from sixfold.disk.hashes import file_hash, is_intact, quick_hash, sealed
from sixfold.disk.reading import ordinary, parse_json, read_json
from sixfold.text.arrays import Examples, open_examples
from sixfold.text.file_kinds import remarks
from sixfold.text.preparation import (
    PARTS,
    ParallelText,
    PlainText,
    Preparation,
    ProgressCallback,
    Reference,
    ReferenceCollector,
    without_empty_sides,
)
from sixfold.text.report import Report
from sixfold.text.sources import Source, Split, pair_sources, text_sources
from sixfold.text.tokenizer import Tokenizers

FORMAT = "sixfold-data-1"
INDEX, REFERENCES = "index.json", "references.jsonl"


@dataclass(frozen=True)
class Prepared:
    """Text that is ready to train on."""

    tokenizers: Tokenizers
    train: Examples
    valid: Examples | None
    references: list[Reference]  # of the validation text
    report: Report
    hashes: dict[str, str]  # file → sha256 of its bytes


def prepare(
    config: Config, folder: Path, tokenizers: Tokenizers | None = None, progress: ProgressCallback | None = None
) -> Prepared:
    """Check all files, train tokenizers if there are none, and write the tokenised text to `folder` in one move.

    Each file is read twice: to check it, and to tokenise it. The test text is only checked.
    """
    pairs = config.model.kind == "encoder_decoder"
    if config.data.train is None:
        raise ValueError("there is nothing to train on: give --data.train, or a recipe that says it")
    form: type[Preparation] = ParallelText if pairs else PlainText
    preparation = form(config.data, progress or (lambda *_: None))
    counts, tokenizers = preparation.check(tokenizers)
    hashes = data_hashes(config, preparation.files.hash_of)
    with new_directory(folder) as aside:
        index: dict[str, Any] = {"format": FORMAT, "kind": config.model.kind, "arrays": {}}
        for part in PARTS[:2]:
            if part in counts:
                index["arrays"][part], counts[part] = preparation.encode(part, counts[part], tokenizers, aside)
        found = preparation.references()
        index["references"] = len(found)
        limit = config.data.max_length if pairs else config.data.context
        look_at = remarks(config.data, data_files(config), pairs=pairs)
        index["report"] = Report(counts, limit, tuple(look_at)).json()
        index["hashes"] = hashes
        index["tokenizers"] = [tokenizer.fingerprint for tokenizer in tokenizers]
        _write_references(aside / REFERENCES, found)
        index["references_hash"] = quick_hash(aside / REFERENCES)
        (aside / INDEX).write_text(json.dumps(sealed(index), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return open_prepared(folder, tokenizers)


class OtherTokenizersError(ValueError):
    """A text that was prepared with others than these."""


def open_prepared(folder: Path, tokenizers: Tokenizers) -> Prepared:
    """What `prepare` wrote, if it is whole and was made with these tokenizers."""
    index = _read_index(folder)
    try:
        if index["tokenizers"] != [tokenizer.fingerprint for tokenizer in tokenizers]:
            raise OtherTokenizersError(f"{folder} was made with other tokenizers; prepare the data anew")
        parts = {part: open_examples(folder, part, arrays) for part, arrays in index["arrays"].items()}
        found = _read_references(folder / REFERENCES, index["references"], index.get("references_hash"))
        report, hashes = Report.from_json(index["report"]), dict(index["hashes"])
        return Prepared(tokenizers, parts["train"], parts.get("valid"), found, report, hashes)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / INDEX} is damaged ({error!r}); prepare the data anew") from None


def data_hashes(config: Config, hash_of: Callable[[Path], str] = file_hash) -> dict[str, str]:
    """File → sha256 of its bytes: as they are now, or as `hash_of` knows them."""
    return {name: digest for source in _sources(config) for name, digest in source.hashes(hash_of).items()}


def data_files(config: Config) -> list[Path]:
    """Where the text lies."""
    return [path for source in _sources(config) for path in source.files]


def _sources(config: Config) -> list[Source[Any]]:
    find = pair_sources if config.model.kind == "encoder_decoder" else text_sources
    return [source for part in PARTS for source in find(config.data, part)]


def references(data: Data, part: Split, kind: str) -> list[Reference]:
    """The raw text of a part, to score against. Equal sources become one; a language model has none.

    Pairs with an empty side are left out; long ones are not.
    """
    if kind != "encoder_decoder":
        return []
    collector = ReferenceCollector()
    for item in pair_sources(data, part):
        collector.update(without_empty_sides(item.read()))
    return collector.references()


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    if not path.is_file():
        raise ValueError(f"{folder} holds no prepared data: it has no {INDEX}")
    try:
        index = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); prepare the data anew") from None
    found = index.get("format") if isinstance(index, dict) else type(index).__name__
    if found != FORMAT:
        raise ValueError(f"{path} has format {quoted(found)}; this version of sixfold reads {FORMAT!r}")
    if not is_intact(index):
        raise ValueError(f"{path} is not as it was written; prepare the data anew")
    return index


def _write_references(path: Path, found: Sequence[Reference]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for reference in found:
            file.write(json.dumps(reference._asdict(), ensure_ascii=False) + "\n")


def _read_references(path: Path, count: int, expected: str | None) -> list[Reference]:
    found = []
    try:
        if expected is not None and quick_hash(path) != expected:
            raise ValueError("it is not as it was written")
        with open(path, encoding="utf-8", newline="\n", opener=ordinary) as file:
            for line in file:
                record = parse_json(line)
                found.append(Reference(record["source"], tuple(record["targets"])))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or missing ({error}); prepare the data anew") from None
    if len(found) != count:
        raise ValueError(f"{path} is damaged: it has {len(found):,} lines, expected {count:,}; prepare the data anew")
    return found
