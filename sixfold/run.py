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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sixfold
from sixfold.config import Config, read_config, write_config
from sixfold.files import ASIDE, write_text

TOKENIZERS = ("tokenizer.json", "source.tokenizer.json", "target.tokenizer.json")


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

    def need_room(self) -> None:
        """A run begins in a new or empty directory, or in the place of a run: nobody else's files are touched."""
        begun = ("lock", "data", self.about.name, *TOKENIZERS)  # and broken off
        if self.directory.exists() and not self.exists():
            there = sorted(path.name for path in self.directory.iterdir())
            foreign = [name for name in there if name not in begun and not name.startswith(ASIDE)]
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

    def forget(self) -> None:
        """Remove what an older run left here: first what makes it a run."""
        own = ("model.json", "model.safetensors", *TOKENIZERS)
        for path in (self.config, self.about, self.log, *(self.directory / name for name in own)):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.training, ignore_errors=True)

    def read_about(self) -> dict[str, Any]:
        """What `begin` wrote."""
        try:
            return json.loads(self.about.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.about} can't be read: {error}") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only writer. The lock is the kernel's, so it goes when its holder does, however it ends."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "lock", "a+", encoding="utf-8") as file:
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
        with open(self.log, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.endswith("\n"):
                    yield self._record(line, number)

    def _record(self, line: str, number: int) -> dict[str, Any]:
        try:
            return json.loads(line)
        except ValueError as error:
            raise ValueError(f"{self.log}, line {number} is damaged: {error}") from None


def versions() -> dict[str, str]:
    """What a run depends on."""
    from importlib.metadata import version

    packages = ("torch", "numpy", "tokenizers", "safetensors")
    return {"sixfold": sixfold.__version__, "python": platform.python_version(), **{p: version(p) for p in packages}}


def machine() -> dict[str, Any]:
    return {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()}
