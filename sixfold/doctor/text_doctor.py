"""Checks a text before training: finds suspicious rows, and shows a few of each kind with their file and line.

1   survey      reads every split once: hashes and numbers of each row (survey.py), a sample for tokenizers
2   examples    reads again up to the last example; or, to write a cleaned copy, everything (cleaning.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sixfold.config.schema import Data
from sixfold.doctor.items import Item, Reader, TrackedFile
from sixfold.doctor.survey import Survey, counted
from sixfold.doctor.suspicions import FLAGS, KINDS
from sixfold.doctor.tokens import Sides, TokensPerWord
from sixfold.text.arrays import Array
from sixfold.text.file_kinds import remarks
from sixfold.text.forms import TextForm
from sixfold.text.preparation import SPLITS, ProgressCallback
from sixfold.text.sources import Source, Split

EXAMPLES = 3  # of each kind in each split
_EVERY = 10_000  # rows between two calls of `progress`


class FileFacts(NamedTuple):
    """What the bytes of a file show."""

    lines: int
    mark: bool  # it begins with a byte order mark
    windows: int  # lines that end in \r\n
    broken: int  # lines with bytes that are not UTF-8


@dataclass
class SplitCheck:
    """One split: its rows, and those that are suspicious."""

    rows: int
    flags: Array
    examples: dict[str, list[Item]] = field(default_factory=dict)  # by kind

    @property
    def counts(self) -> dict[str, int]:
        return counted(self.flags)


@dataclass
class TextCheck:
    """All that was found."""

    form: TextForm
    sources: Mapping[Split, Sequence[Source[Any]]]
    splits: dict[Split, SplitCheck]
    files: dict[str, FileFacts]
    remarks: list[str]
    tokens: list[TokensPerWord]
    units: tuple[str, ...]  # that tokens are counted by, for each side
    bytes: int  # of the training text


def check_text(data: Data, form: TextForm, progress: ProgressCallback) -> TextCheck:
    """Check every split that a configuration names."""
    sources = {split: found for split in SPLITS if (found := form.sources(data, split))}
    if not sources:
        raise ValueError("there is no text to check: give files, --data.train, or a recipe that has it")
    surveys = {split: Survey(form, data) for split in sources}
    files, sides = {}, Sides(2 if form.has_pairs else 1)
    for split, survey in surveys.items():
        for source in sources[split]:
            reader = Reader(source, form)
            for item in survey.watched(reader):
                if split == next(iter(sources)):
                    sides.add(item)
                _tell(progress, f"checking {split}", survey.rows)
            files.update({str(path): _facts(file) for path, file in reader.files.items()})
    first = surveys[next(iter(sources))]
    splits = {split: SplitCheck(survey.rows, _flags(split, surveys)) for split, survey in surveys.items()}
    paths = [Path(name) for name in files]
    warned = [each for each in remarks(data, paths, pairs=form.has_pairs) if each.startswith("warning")]
    tokens = sides.measure(data, first.bytes)
    check = TextCheck(form, sources, splits, files, warned, tokens, sides.units(), first.bytes)
    for split in splits:
        _find_examples(check, split, progress)
    return check


def rows_of(check: TextCheck, split: Split) -> Iterator[tuple[Reader, Item, int]]:
    """Read a split again: each row with its reader and its flags. A text that has changed is an error."""
    flags, number = check.splits[split].flags.tolist(), 0
    for source in check.sources[split]:
        reader = Reader(source, check.form)
        for item in reader:
            if number >= len(flags):
                raise ValueError(f"{source.name} has changed while it was read; check it again")
            yield reader, item, flags[number]
            number += 1


def _flags(split: Split, surveys: Mapping[Split, Survey]) -> Array:
    """The flags of a split, with those that compare it with other splits."""
    survey = surveys[split]
    flags = survey.flags()
    if split == "train":
        held_out = [other for name, other in surveys.items() if name != "train"]
        flags[survey.also_in(held_out)] |= FLAGS["held_out"]
    elif "train" in surveys:
        flags[survey.also_in([surveys["train"]])] |= FLAGS["in_training"]
    return flags


def _find_examples(check: TextCheck, split: Split, progress: ProgressCallback) -> None:
    """Read a split up to the last of the first rows of each kind."""
    found = check.splits[split]
    first = {kind.name: np.flatnonzero(found.flags & FLAGS[kind.name])[:EXAMPLES] for kind in KINDS}
    wanted = {name: {*rows.tolist()} for name, rows in first.items() if len(rows)}
    last = max((max(rows) for rows in wanted.values()), default=-1)
    for number, (_, item, _) in enumerate(rows_of(check, split)):
        for name, rows in wanted.items():
            if number in rows:
                found.examples.setdefault(name, []).append(item)
        _tell(progress, f"looking for examples in {split}", number)
        if number >= last:
            break


def _facts(file: TrackedFile) -> FileFacts:
    return FileFacts(file.line, file.mark, file.windows, file.broken)


def _tell(progress: Callable[..., Any], what: str, done: int) -> None:
    if done % _EVERY == 0:
        progress(what, done, None)
