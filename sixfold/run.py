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
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sixfold
from sixfold.config import Config, read_config, write_config
from sixfold.files import ASIDE, remove_directory, sync, write_text

TOKENIZERS = ("tokenizer.json", "source.tokenizer.json", "target.tokenizer.json")
LOCK = "lock"
_OWN = ("run.json", "log.jsonl", "model.json", "model.safetensors", *TOKENIZERS, "data", "training", "tensorboard")


class Run:
    """The paths of a run, and what is written in its small files."""

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        self.config = self.directory / "config.yaml"
        self.about = self.directory / "run.json"
        self.log = self.directory / "log.jsonl"
        self.data = self.directory / "data"
        self.training = self.directory / "training"

    def exists(self) -> bool:
        return self.config.exists()

    @property
    def draft(self) -> Run:
        """Where what makes a new run is made ready, aside."""
        return Run(self.directory / f"{ASIDE}new")

    def need_room(self) -> None:
        """A run begins in a new or empty directory, or in the place of a run: nobody else's files are touched.

        Where a beginning broke off there is a lock, and nothing that is not a run's.
        """
        if self.directory.exists() and not self.exists():
            there = sorted(path.name for path in self.directory.iterdir())
            own = (LOCK, *_OWN) if LOCK in there else ()
            foreign = [name for name in there if name not in own and not name.startswith(ASIDE)]
            if foreign:
                raise ValueError(
                    f"{self.directory} is no run, and holds {foreign[0]}: a run needs a directory of its own"
                )

    def need(self) -> Run:
        """This run, if it is one."""
        if not self.exists():
            raise ValueError(f"{self.directory} is not a run: it has no {self.config.name}")
        return self

    def read_config(self) -> Config:
        return read_config(self.need().config)

    def begin(self, config: Config, about: dict[str, Any]) -> None:
        """Write down what is about to be done."""
        self.directory.mkdir(parents=True, exist_ok=True)
        described = {**about, "versions": versions(), "machine": machine(), "command": sys.argv}
        write_text(self.about, json.dumps(described, indent=2, ensure_ascii=False) + "\n")
        write_config(config, self.config)

    def take_over_draft(self) -> None:
        """In the place of an older run, which goes, put what was made ready."""
        self.forget()
        for path in self.draft.directory.iterdir():
            path.rename(self.directory / path.name)
        self.draft.directory.rmdir()
        sync(self.directory)

    def forget(self) -> None:
        """Remove what an older run left here: first what makes it a run."""
        for path in (self.config, *(self.directory / name for name in _OWN)):
            if path.is_dir() and not path.is_symlink():
                remove_directory(path)
            else:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Leave nothing of a beginning that broke off. Only for who holds the lock."""
        self.forget()
        (self.directory / LOCK).unlink(missing_ok=True)
        if not any(self.directory.iterdir()):
            self.directory.rmdir()

    def read_about(self) -> dict[str, Any]:
        """What `begin` wrote."""
        try:
            about = json.loads(self.about.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{self.about} can't be read: {error}") from None
        if not isinstance(about, dict):
            raise ValueError(f"{self.about} can't be read: it holds a {type(about).__name__}, not names and values")
        return about

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only writer. The lock is the kernel's, so it goes when its holder does, however it ends."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / LOCK, "a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise ValueError(f"{self.directory} is being written by {holder}; wait, or stop it") from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}\n")
            file.flush()
            yield

    def records(self) -> Iterator[dict[str, Any]]:
        """The lines of the log. A last line that a crash cut short is left out."""
        if not self.log.exists():
            return
        with open(self.log, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    yield self._record(line, number)

    def _record(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.log}, line {number} is damaged: {error}") from None
        if not isinstance(record, dict) or type(record.get("kind")) is not str or type(record.get("step")) is not int:
            raise ValueError(f"{self.log}, line {number} is damaged: it is no record with a kind and a step")
        return record


def versions() -> dict[str, str]:
    """What a run depends on."""
    from importlib.metadata import version

    packages = ("torch", "numpy", "tokenizers", "safetensors")
    return {"sixfold": sixfold.__version__, "python": platform.python_version(), **{p: version(p) for p in packages}}


def machine() -> dict[str, Any]:
    return {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()}
