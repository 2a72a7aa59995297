"""A run directory: a model directory with all that is needed to reproduce and resume its training.

config.yaml            the complete configuration, as it was resolved
run.json               versions, machine, command line, hashes of the data
model.json             kind, sizes and modifications of the model
model.safetensors      its best weights
tokenizer.json         or source.tokenizer.json and target.tokenizer.json
labels.json            the labels of a classifier
log.jsonl              a line every log_every steps, for each validation, and for each event
data/                  the tokenised text
training/step-N/       checkpoints, to resume from
lock                   held by the process that writes
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sixfold
from sixfold.config.files import read_config, write_config
from sixfold.config.schema import Config
from sixfold.disk.atomic import STAGED, sync, write_text
from sixfold.disk.reading import parse_json, read_bytes, read_json, regular_file
from sixfold.runs import old_formats

TOKENIZERS = ("tokenizer.json", "source.tokenizer.json", "target.tokenizer.json")
LOCK = "lock"
_CONFIG = "config.yaml"
_MODEL = ("model.json", "model.safetensors")
_OWN = (*_MODEL, _CONFIG, "run.json", "log.jsonl", *TOKENIZERS, "labels.json", "data", "training", "tensorboard")
_HOLDER = "process "  # the beginning of a lock file's text
_LARGEST_LOCK = 1 << 10  # bytes
_LONGEST_RECORD = 1 << 20  # bytes of a line of the log
_LAST_STEP = 1 << 62


def is_part_of_run(path: Path) -> bool:
    """Whether this is one of the files that make up a run."""
    return path.name in _OWN and Run(path.parent).exists()


class Run:
    """The paths of a run and the content of its small files."""

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        self.about = self.directory / "run.json"
        self.log = self.directory / "log.jsonl"
        self.data = self.directory / "data"
        self.training = self.directory / "training"
        self._ready = self.directory / ".sixfold-ready"  # a new run, while the older one is moved away
        self._coming = self.directory / ".sixfold-coming"  # the new run after that, while it moves in

    @property
    def config(self) -> Path:
        """The path of the configuration: of the new run, if one is being moved in."""
        folders = (self._ready, self._coming)
        return next((folder / _CONFIG for folder in folders if (folder / _CONFIG).exists()), self.directory / _CONFIG)

    @property
    def arriving(self) -> Path | None:
        """The directory of a complete new run that has not been moved in entirely; see `replace_by_draft`."""
        return next((path for path in (self._ready, self._coming) if path.is_dir()), None)

    @property
    def draft(self) -> Run:
        """The staging directory in which a new run is prepared."""
        return Run(self.directory / f"{STAGED}new")

    def exists(self) -> bool:
        """Whether there is a configuration to read. Before writing or removing anything, ask `proved`."""
        return os.path.lexists(self.config)  # a broken link is a damaged run, not a model without a run

    def proved(self) -> bool:
        """Whether sixfold wrote this directory: other programs, too, have a config.yaml and a data directory."""
        if self.arriving is not None:
            return True
        versions = _json(self.about).get("versions")
        states = self.training.glob("step-*/state.json")
        return (isinstance(versions, dict) and "sixfold" in versions) or any(map(_is_checkpoint, states))

    def need_room(self) -> None:
        """Raise a ValueError unless the directory is new, empty, or a run: other files are never touched.

        A lock and staged files, left by a start that was interrupted, don't count.
        """
        if not self.directory.exists():
            if self.directory.is_symlink():
                raise ValueError(
                    f"{self.directory} is a link that leads to nothing; remove it, or give another directory"
                )
            return
        if self.proved():
            return
        there = sorted(path.name for path in self.directory.iterdir())
        foreign = [name for name in there if not (name.startswith(STAGED) or (name == LOCK and self._is_own_lock()))]
        if foreign:
            raise ValueError(f"{self.directory} is not a run, but holds {foreign[0]}; give a new or empty directory")

    def need_outside(self, files: Iterable[Path]) -> None:
        """Raise a ValueError if one of these files would be deleted when the run is replaced."""
        own = [(self.directory / name).absolute() for name in _OWN]
        for file in files:
            for path in own:
                if file.absolute().is_relative_to(path) or _behind_links(file).is_relative_to(_behind_links(path)):
                    raise ValueError(
                        f"{file} is part of the data, but lies in {path}, which is deleted when the run is replaced; "
                        f"move it, or give another --out"
                    )

    def _is_own_lock(self) -> bool:
        try:
            text = read_bytes(self.directory / LOCK, _LARGEST_LOCK)
        except (OSError, ValueError):
            return False
        return not text or text.startswith(_HOLDER.encode())

    def need(self) -> Run:
        """This run; ValueError if there is none."""
        if not self.exists():
            raise ValueError(f"{self.directory} is not a run: it has no {_CONFIG}")
        return self

    def need_proved(self) -> Run:
        """This run; ValueError unless sixfold wrote it, so that it may be written to."""
        if not self.need().proved():
            raise ValueError(
                f"{self.directory} is not a run: it has a {_CONFIG}, but neither a {self.about.name} nor a checkpoint "
                f"that sixfold wrote"
            )
        return self

    def read_config(self, settings: Mapping[str, str] | None = None) -> Config:
        """The configuration, overridden by `settings`; that of an older run with today's names."""
        if not self.need().config.is_file():
            raise ValueError(f"{self.config} is not a regular file or a link to one: the run can't be read")
        about = self.config.with_name(self.about.name)
        if os.path.lexists(about) and not about.is_file():
            raise ValueError(f"{about} is not a regular file or a link to one; remove it, the run works without it")
        config = read_config(self.config, settings, translate=old_formats.renamed)
        if not old_formats.is_old_config(self.config):
            return config
        return config.with_only([old_formats.modification(entry) for entry in config.model.modifications])

    def begin(self, config: Config, about: dict[str, Any]) -> None:
        """Write config.yaml and run.json."""
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [as_text(word) for word in sys.argv]
        described = {
            **about,
            "format": old_formats.RUN_2,
            "versions": versions(),
            "machine": machine(),
            "command": command,
        }
        write_config(config, self.directory / _CONFIG)  # first: run.json states its format
        write_text(self.about, json.dumps(described, indent=2, ensure_ascii=False) + "\n")

    def replace_by_draft(self) -> None:
        """Replace an older run by the draft. The caller must hold the lock.

            one rename       the draft, complete and on disk, becomes "ready": from here on the new run is the run
            `complete`       the files of the older run move out; then "ready" becomes "coming"
                             the files in "coming" move in

        If this is interrupted, the next process that takes the lock completes it.
        """
        for path in (self.draft.directory, *self.draft.directory.iterdir()):
            sync(path)
        self._gone.mkdir(exist_ok=True)  # here a full disk does no harm yet
        self.draft.directory.rename(self._ready)
        sync(self.directory)
        self.complete()

    def complete(self) -> None:
        """Finish moving in a new run, if one is ready. The caller must hold the lock."""
        if self._ready.is_dir():
            self._gone.mkdir(exist_ok=True)
            for name in _OWN:
                if os.path.lexists(self.directory / name):
                    (self.directory / name).rename(self._gone / name)
            sync(self.directory)
            self._ready.rename(self._coming)
        if self._coming.is_dir():
            sync(self.directory)
            for path in sorted(self._coming.iterdir()):
                path.rename(self.directory / path.name)
            sync(self.directory)
            self._coming.rmdir()
            shutil.rmtree(self._gone, ignore_errors=True)

    @property
    def _gone(self) -> Path:
        return self.directory / f"{STAGED}gone"

    def remove(self) -> None:
        """Remove the files of a start that failed. The caller must hold the lock."""
        (self.directory / LOCK).unlink(missing_ok=True)
        if not any(self.directory.iterdir()):
            self.directory.rmdir()

    def read_about(self) -> dict[str, Any]:
        """The content of run.json."""
        try:
            about = read_json(self.about)
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.about} can't be read: {error}") from None
        if not isinstance(about, dict):
            raise ValueError(f"{self.about} can't be read: it holds a {type(about).__name__}, not an object")
        return about

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only writer. The kernel releases the lock when the process ends, however it ends."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / LOCK, "a+", encoding="utf-8", opener=regular_file) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise ValueError(f"{self.directory} is being written by {holder}; wait, or stop it") from None
            file.truncate(0)
            file.write(f"{_HOLDER}{os.getpid()} on {platform.node()}\n")
            file.flush()
            yield

    def records(self) -> Iterator[dict[str, Any]]:
        """The records of the log. A last line that a crash cut short is left out."""
        if not self.log.exists():
            return
        with open(self.log, "rb", opener=regular_file) as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_RECORD), b""), 1):
                if line.endswith(b"\n") or len(line) == _LONGEST_RECORD:
                    yield self._record(line, number)

    def _record(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            record = parse_json(line.decode())
        except ValueError as error:
            raise ValueError(f"{self.log}, line {number} is damaged: {error}") from None
        kind, step = (record.get("kind"), record.get("step")) if isinstance(record, dict) else (None, None)
        if type(kind) is not str or type(step) is not int or not 0 <= step <= _LAST_STEP:
            raise ValueError(f"{self.log}, line {number} is damaged: it is not a record with a kind and a step")
        return record


def _behind_links(path: Path) -> Path:
    return Path(os.path.realpath(path))  # `resolve` fails at a loop of links


def versions() -> dict[str, str]:
    """The versions of the software that a run's numbers depend on."""
    from importlib.metadata import version

    packages = ("torch", "numpy", "tokenizers", "safetensors")
    return {"sixfold": sixfold.__version__, "python": platform.python_version(), **{p: version(p) for p in packages}}


def machine() -> dict[str, Any]:
    return {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()}


def as_text(words: str) -> str:
    """The text with bytes that are not UTF-8 written as \\x…, so that it can be encoded."""
    return words.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _is_checkpoint(state: Path) -> bool:
    return str(_json(state).get("format", "")).startswith("sixfold-checkpoint")


def _json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} if it is missing or damaged."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
