"""A run directory: a model directory that also says how the model came to be, and can go on.

config.yaml            the whole configuration, as it was resolved
run.json               versions, machine, command line, hashes of the data
model.json             what the model is
model.safetensors      its best weights
tokenizer.json         or source.tokenizer.json and target.tokenizer.json
log.jsonl              a line for every so many steps, for each validation, for whatever happened
data/                  the tokenised text
training/step-N/       checkpoints, to resume from
lock                   held by who writes
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
from sixfold.disk.reading import ordinary, parse_json, read_bytes, read_json
from sixfold.runs import old_formats

TOKENIZERS = ("tokenizer.json", "source.tokenizer.json", "target.tokenizer.json")
LOCK = "lock"
_CONFIG = "config.yaml"
_MODEL = ("model.json", "model.safetensors")
_OWN = (*_MODEL, _CONFIG, "run.json", "log.jsonl", *TOKENIZERS, "data", "training", "tensorboard")
_HOLDER = "process "  # how what is in a lock begins
_LARGEST_LOCK = 1 << 10  # bytes
_LONGEST_RECORD = 1 << 20  # bytes of a line of the log
_LAST_STEP = 1 << 62


class Run:
    """The paths of a run, and what is written in its small files."""

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        self.about = self.directory / "run.json"
        self.log = self.directory / "log.jsonl"
        self.data = self.directory / "data"
        self.training = self.directory / "training"
        self._ready = self.directory / ".sixfold-ready"  # a new run, before the older one has gone
        self._coming = self.directory / ".sixfold-coming"  # and when it has

    @property
    def config(self) -> Path:
        """The configuration: of a new run, if one is on its way here."""
        places = (self._ready, self._coming)
        return next((place / _CONFIG for place in places if (place / _CONFIG).exists()), self.directory / _CONFIG)

    @property
    def arriving(self) -> Path | None:
        """Where a new run lies that is whole, but not yet, or not all of it, in its place; see `replace_by_draft`."""
        return next((path for path in (self._ready, self._coming) if path.is_dir()), None)

    @property
    def draft(self) -> Run:
        """Where what makes a new run is made ready, aside."""
        return Run(self.directory / f"{STAGED}new")

    def exists(self) -> bool:
        """Whether there is something to read. What may be written to, or removed, must be `proved`."""
        return os.path.lexists(self.config)  # a link to nowhere is a damaged run, not a model without one

    def proved(self) -> bool:
        """Whether sixfold made what is here: many a directory has a config.yaml and data, and is somebody's work."""
        if self.arriving is not None:
            return True
        versions = _json(self.about).get("versions")
        states = self.training.glob("step-*/state.json")
        return (isinstance(versions, dict) and "sixfold" in versions) or any(map(_is_checkpoint, states))

    def need_room(self) -> None:
        """A run begins in a new or empty directory, or in the place of a run: nobody else's files are touched.

        Where a beginning broke off there is a lock, and what was made aside.
        """
        if not self.directory.exists() or self.proved():
            return
        there = sorted(path.name for path in self.directory.iterdir())
        foreign = [name for name in there if not (name.startswith(STAGED) or (name == LOCK and self._is_own_lock()))]
        if foreign:
            raise ValueError(f"{self.directory} is no run, and holds {foreign[0]}: a run needs a directory of its own")

    def need_outside(self, files: Iterable[Path]) -> None:
        """Files that are needed must not be among what goes when a run is replaced."""
        own = [(self.directory / name).absolute() for name in _OWN]
        for file in files:
            for path in own:
                if file.absolute().is_relative_to(path) or _behind_links(file).is_relative_to(_behind_links(path)):
                    raise ValueError(
                        f"{file} is to be read, but lies in {path}, which goes when the run there is replaced; "
                        f"move it, or give another --out"
                    )

    def _is_own_lock(self) -> bool:
        try:
            text = read_bytes(self.directory / LOCK, _LARGEST_LOCK)
        except (OSError, ValueError):
            return False
        return not text or text.startswith(_HOLDER.encode())

    def need(self) -> Run:
        """This run, if it is one."""
        if not self.exists():
            raise ValueError(f"{self.directory} is not a run: it has no {_CONFIG}")
        return self

    def need_proved(self) -> Run:
        """This run, if it is one that may be written to."""
        if not self.need().proved():
            raise ValueError(
                f"{self.directory} is not a run: it has a {_CONFIG}, but neither a {self.about.name} nor a checkpoint "
                f"that sixfold wrote"
            )
        return self

    def read_config(self, settings: Mapping[str, str] | None = None) -> Config:
        """The configuration, with settings that win over it; that of an older run in today's words."""
        if not self.need().config.is_file():
            raise ValueError(f"{self.config} is no ordinary file, nor a link to one: the run can't be read")
        config = read_config(self.config, settings)
        if not old_formats.is_old_config(self.config):
            return config
        return config.with_only([old_formats.modification(wish) for wish in config.model.modifications])

    def begin(self, config: Config, about: dict[str, Any]) -> None:
        """Write down what is about to be done."""
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [as_text(word) for word in sys.argv]
        described = {
            **about,
            "format": old_formats.RUN_2,
            "versions": versions(),
            "machine": machine(),
            "command": command,
        }
        write_config(config, self.directory / _CONFIG)  # first: run.json says of which format it is
        write_text(self.about, json.dumps(described, indent=2, ensure_ascii=False) + "\n")

    def replace_by_draft(self) -> None:
        """Put the run that was made ready aside in the place of an older one, which goes. Only with the lock.

            one move         the draft, whole and on disk, is called ready: from here on the new run is the run
            `complete`       what is of the older run moves out; then what is ready is called coming
                             what is coming moves in

        Wherever this breaks off, who comes next completes it.
        """
        for path in (self.draft.directory, *self.draft.directory.iterdir()):
            sync(path)
        self._gone.mkdir(exist_ok=True)  # here a full disk costs nothing yet
        self.draft.directory.rename(self._ready)
        sync(self.directory)
        self.complete()

    def complete(self) -> None:
        """Bring a run that is on its way here to its place. Only for who holds the lock."""
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
        """Leave nothing of a beginning that broke off. Only for who holds the lock."""
        (self.directory / LOCK).unlink(missing_ok=True)
        if not any(self.directory.iterdir()):
            self.directory.rmdir()

    def read_about(self) -> dict[str, Any]:
        """What `begin` wrote."""
        try:
            about = read_json(self.about)
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.about} can't be read: {error}") from None
        if not isinstance(about, dict):
            raise ValueError(f"{self.about} can't be read: it holds a {type(about).__name__}, not names and values")
        return about

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only writer. The lock is the kernel's, so it goes when its holder does, however it ends."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / LOCK, "a+", encoding="utf-8", opener=ordinary) as file:
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
        """The lines of the log. A last line that a crash cut short is left out."""
        if not self.log.exists():
            return
        with open(self.log, "rb", opener=ordinary) as file:
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
            raise ValueError(f"{self.log}, line {number} is damaged: it is no record with a kind and a step")
        return record


def _behind_links(path: Path) -> Path:
    return Path(os.path.realpath(path))  # `resolve` fails at a loop of links


def versions() -> dict[str, str]:
    """What a run depends on."""
    from importlib.metadata import version

    packages = ("torch", "numpy", "tokenizers", "safetensors")
    return {"sixfold": sixfold.__version__, "python": platform.python_version(), **{p: version(p) for p in packages}}


def machine() -> dict[str, Any]:
    return {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()}


def as_text(words: str) -> str:
    """The same, if it can be written: bytes of a name that are no UTF-8 become \\x… ."""
    return words.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _is_checkpoint(state: Path) -> bool:
    return str(_json(state).get("format", "")).startswith("sixfold-checkpoint")


def _json(path: Path) -> dict[str, Any]:
    """What a file says; nothing, if it is not there or says nothing that can be understood."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
