"""Prepares the text of a run: checks all files before writing anything, then reads them again and tokenises them.

data/index.json          descriptions of the arrays, hashes of the text, fingerprints of the tokenizers
data/train.source.ids …  the arrays, see `sixfold.text.arrays`
data/references.jsonl    the raw validation text, to score against
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sixfold.config.schema import Data
from sixfold.core.quote import quoted
from sixfold.disk.atomic import new_directory
from sixfold.disk.hashes import file_hash, is_intact, quick_hash, with_hash
from sixfold.disk.reading import parse_json, read_json, regular_file
from sixfold.runs.run import TOKENIZERS
from sixfold.text.arrays import Examples, open_examples
from sixfold.text.file_kinds import remarks
from sixfold.text.forms import TextForm
from sixfold.text.preparation import SPLITS, Preparation, ProgressCallback, Reference
from sixfold.text.report import Report
from sixfold.text.sources import Source
from sixfold.text.tokenizer import Tokenizers

FORMAT = "sixfold-data-1"
INDEX, REFERENCES = "index.json", "references.jsonl"
_ARRAYS = (".ids", ".offsets", ".values")


@dataclass(frozen=True)
class Prepared:
    """Text that is ready to train on."""

    tokenizers: Tokenizers
    train: Examples
    valid: Examples | None
    references: list[Reference]  # of the validation text
    report: Report
    hashes: dict[str, str]  # file → sha256 of its bytes
    labels: tuple[str, ...] = ()  # of the classes, if texts have labels
    folder: Path = Path()  # that holds the arrays


def prepare(
    data: Data,
    form: TextForm,
    folder: Path,
    tokenizers: Tokenizers | None = None,
    progress: ProgressCallback | None = None,
    labels: Sequence[str] = (),
) -> Prepared:
    """Check all files, train tokenizers if none are given, and write the tokenised text to `folder`, atomically.

    Each file is read twice: to check it, and to tokenise it. The test text is only checked. `labels` are those of an
    existing model; by default, labels are found in the training text.
    """
    if data.train is None:
        raise ValueError("there is no text to train on: give --data.train, or a recipe that has it")
    preparation: Preparation = form.preparation(data, progress or (lambda *_: None), *([labels] if labels else []))
    counts, tokenizers = preparation.check(tokenizers)
    hashes = data_hashes(data, form, preparation.files.hash_of)
    with new_directory(folder) as staging:
        section = data.model_dump(mode="json")
        index: dict[str, Any] = {"format": FORMAT, "form": form.name, "data": section, "arrays": {}}
        for split in SPLITS[:2]:
            if split in counts:
                index["arrays"][split], counts[split] = preparation.encode(split, counts[split], tokenizers, staging)
        found = preparation.references()
        index["references"] = len(found)
        look_at = [*preparation.remarks, *remarks(data, data_files(data, form), pairs=form.has_pairs)]
        index["report"] = Report(counts, getattr(data, form.limit), tuple(look_at)).json()
        index["hashes"], index["labels"] = hashes, list(preparation.labels)
        index["tokenizers"] = [tokenizer.fingerprint for tokenizer in tokenizers]
        _write_references(staging / REFERENCES, found)
        index["references_hash"] = quick_hash(staging / REFERENCES)
        (staging / INDEX).write_text(
            json.dumps(with_hash(index), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
    return open_prepared(folder, tokenizers)


class OtherTokenizersError(ValueError):
    """A text that was prepared with other tokenizers."""


def open_prepared(folder: Path, tokenizers: Tokenizers) -> Prepared:
    """Open the text that `prepare` wrote; ValueError if it is damaged or was prepared with other tokenizers."""
    index = _read_index(folder)
    try:
        if index["tokenizers"] != [tokenizer.fingerprint for tokenizer in tokenizers]:
            raise OtherTokenizersError(f"{folder} was prepared with other tokenizers; prepare the data again")
        splits = {split: open_examples(folder, split, arrays) for split, arrays in index["arrays"].items()}
        found = _read_references(folder / REFERENCES, index["references"], index.get("references_hash"))
        report, hashes = Report.from_json(index["report"]), dict(index["hashes"])
        labels = tuple(index.get("labels", ()))
        return Prepared(tokenizers, splits["train"], splits.get("valid"), found, report, hashes, labels, folder)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / INDEX} is damaged ({error!r}); prepare the data again") from None


def copy_prepared(
    prepared: Prepared, folder: Path, data: Data, form: TextForm, tokenizers: Tokenizers | None = None
) -> Prepared:
    """Copy prepared text to another folder; ValueError if it was not prepared for this section `data` and form.

    Given `tokenizers` must be those of the text; then data.tokenizer and data.vocabulary are not compared. Files are
    hard-linked if possible. That is safe because they are never modified, only replaced.
    """
    index = _read_index(prepared.folder)
    if tokenizers is not None and index.get("tokenizers") != [each.fingerprint for each in tokenizers]:
        raise OtherTokenizersError(
            f"{prepared.folder} was prepared with other tokenizers than those of the run to start from; prepare it "
            "with start_from=RUN"
        )
    if index.get("form") != form.name:  # a table may be pairs, or texts with labels
        raise ValueError(f"{prepared.folder} was prepared as {index.get('form')}, not as {form.name}; prepare it again")
    then, now = _as_compared(index.get("data", {})), _as_compared(data.model_dump(mode="json"))
    compared = [key for key in now if tokenizers is None or key not in ("tokenizer", "vocabulary")]
    different = [
        f"data.{key} was {then.get(key)!r} and is {now[key]!r}" for key in compared if then.get(key) != now[key]
    ]
    if different:
        raise ValueError(f"{prepared.folder} was prepared for another text: {'; '.join(different)}; prepare it again")
    with new_directory(folder) as staging:
        for path in sorted(prepared.folder.iterdir()):
            if _is_own(path):
                _share(path, staging / path.name)
    return open_prepared(folder, prepared.tokenizers)


def _as_compared(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section `data` without what has no effect. Before there was `held_out`, nothing was held out."""
    held_out = 0 if section.get("valid") is not None else section.get("held_out", 0)
    return {**section, "held_out": held_out, "seed": section.get("seed", 1) if held_out else None}


def need_room(folder: Path) -> None:
    """Raise a ValueError unless a folder is new, empty, or holds prepared text alone: `prepare` replaces it."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not prepared text, but a file; give a new or empty folder")
    there = sorted(folder.iterdir()) if folder.exists() else []
    foreign = [path for path in there if not _is_own(path) and path.name not in TOKENIZERS]
    if foreign or (there and not (folder / INDEX).is_file()):
        held = (foreign or there)[0].name
        raise ValueError(f"{folder} is not prepared text, but holds {held}; give a new or empty folder")


def _is_own(path: Path) -> bool:
    return path.name in (INDEX, REFERENCES) or path.suffix in _ARRAYS


def _share(path: Path, other: Path) -> None:
    try:
        os.link(path, other)
    except OSError:  # another file system, or one without links
        shutil.copyfile(path, other)


def data_hashes(data: Data, form: TextForm, hash_of: Callable[[Path], str] = file_hash) -> dict[str, str]:
    """File → SHA-256 of its bytes, by `hash_of`: by default of the file as it is now."""
    return {name: digest for source in _sources(data, form) for name, digest in source.hashes(hash_of).items()}


def data_files(data: Data, form: TextForm) -> list[Path]:
    """The paths of all text files."""
    return [path for source in _sources(data, form) for path in source.files]


def _sources(data: Data, form: TextForm) -> list[Source[Any]]:
    return [source for split in SPLITS for source in form.sources(data, split)]


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    if not path.is_file():
        raise ValueError(f"{folder} holds no prepared data: it has no {INDEX}")
    try:
        index = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); prepare the data again") from None
    found = index.get("format") if isinstance(index, dict) else type(index).__name__
    if found != FORMAT:
        raise ValueError(f"{path} has format {quoted(found)}; this version of sixfold reads {FORMAT!r}")
    if not is_intact(index):
        raise ValueError(f"{path} has changed since it was written; prepare the data again")
    return index


def _write_references(path: Path, found: Sequence[Reference]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for reference in found:
            file.write(json.dumps(reference._asdict(), ensure_ascii=False) + "\n")


def _read_references(path: Path, count: int, expected: str | None) -> list[Reference]:
    found = []
    try:
        if expected is not None and quick_hash(path) != expected:
            raise ValueError("it has changed since it was written")
        with open(path, encoding="utf-8", newline="\n", opener=regular_file) as file:
            for line in file:
                record = parse_json(line)
                found.append(Reference(record["source"], tuple(record["targets"])))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or missing ({error}); prepare the data again") from None
    if len(found) != count:
        raise ValueError(f"{path} is damaged: it has {len(found):,} lines, expected {count:,}; prepare the data again")
    return found
