"""Writes a cleaned copy of a text; the original stays as it is.

Suspicious rows of the training text are dropped. Validation and test text are copied with all rows, since a score on
other text is another score. In all files, byte order marks and \\r are left out, and bytes that are not UTF-8 become
U+FFFD.
"""

from __future__ import annotations

import gzip
import io
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sixfold.disk.atomic import new_directory
from sixfold.doctor.suspicions import FLAGS, KINDS
from sixfold.doctor.text_doctor import TextCheck, rows_of
from sixfold.text.preparation import ProgressCallback
from sixfold.text.sources import Split


class Cleaned(NamedTuple):
    """What was written of a split."""

    kept: int
    dropped: dict[str, int]  # kind → rows; a row with several suspicions counts for the first


def need_empty(out: Path) -> None:
    """Raise a ValueError unless a directory is new or empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not an empty directory; give a new one for the cleaned copy")


def clean(check: TextCheck, out: Path, progress: ProgressCallback) -> dict[Split, Cleaned]:
    """Write all files under their names into a new directory: all of them, or nothing."""
    need_empty(out)
    names = _names(check)
    with new_directory(out) as staging, ExitStack() as stack:
        files = {path: stack.enter_context(_writer(staging / name)) for path, name in names.items()}
        return {split: _clean_split(check, split, files, progress) for split in check.splits}


def _clean_split(check: TextCheck, split: Split, files: dict[Path, Any], progress: ProgressCallback) -> Cleaned:
    kept, dropped = 0, Counter[str]()
    for number, (reader, item, flags) in enumerate(rows_of(check, split), 1):
        reason = reason_to_drop(flags) if split == "train" else None
        targets = [files[path] for path in reader.source.files]
        targets[0].write(item.before)
        if reason is None:
            kept += 1
            for file, raw in zip(targets, item.stored, strict=True):
                file.write(raw)
        else:
            dropped[reason] += 1
        if number % 10_000 == 0:
            progress(f"writing {split}", number, check.splits[split].rows)
    if not kept:
        raise ValueError(f"each of {sum(dropped.values()):,} rows of data.{split} would be dropped; nothing is written")
    return Cleaned(kept, {kind.name: dropped[kind.name] for kind in KINDS if dropped[kind.name]})


def reason_to_drop(flags: int) -> str | None:
    """The first kind of suspicion for which a row is dropped."""
    return next((kind.name for kind in KINDS if kind.dropped and flags & FLAGS[kind.name]), None)


def _names(check: TextCheck) -> dict[Path, str]:
    """The name of each file in the new directory."""
    paths = [path for sources in check.sources.values() for source in sources for path in source.files]
    embedded = [source.name for sources in check.sources.values() for source in sources if not source.files]
    if embedded:
        raise ValueError(f"{embedded[0]} comes with sixfold and is no file, so there is no copy to clean")
    names = Counter(path.name for path in paths)
    for path in paths:
        if names[path.name] > 1:
            raise ValueError(f"two files are called {path.name}, and one directory can't hold both; clean them apart")
    return {path: path.name for path in paths}


@contextmanager
def _writer(path: Path) -> Iterator[Any]:
    """A file to write bytes to, which are packed if its name ends in .gz."""
    with open(path, "wb") as file:
        if path.suffix != ".gz":
            yield file
            return
        with (
            gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed,
            io.BufferedWriter(packed) as buffer,
        ):
            yield buffer
