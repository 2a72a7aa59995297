"""The log of a run: `log.jsonl`, one line of strict JSON for each record."""

from __future__ import annotations

import json
import math
import numbers
import os
from typing import Any

from sixfold.disk.atomic import path_in_errors, sync
from sixfold.disk.reading import regular_file
from sixfold.runs.run import Run
from sixfold.training.observers.observer import Observer, Record


class Log(Observer):
    """Writes records to the file. A checkpoint stores the file's size, so that a resumed run continues the file."""

    def __init__(self, run: Run):
        self._path = run.log

    def record(self, record: Record) -> None:
        """Append a record; it survives the end of the process."""
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        with path_in_errors(self._path), open(self._path, "ab", buffering=0, opener=regular_file) as file:
            # In one write: a kill leaves complete lines, and at most one cut short at the end.
            while line:  # a nearly full disk writes a part, and the next write raises the error
                line = line[file.write(line) :]

    def size(self) -> int:
        """Bytes of the log, after a sync: a checkpoint relies on them."""
        if not self._path.exists():
            return 0
        sync(self._path)
        return self._path.stat().st_size

    def cut(self, size: int) -> str | None:
        """Truncate the log to its size at a checkpoint. → a message if lines are missing"""
        found = self._path.stat().st_size if self._path.exists() else 0
        lost = None
        if found < size:
            lost = f"{self._path} has {found:,} bytes, but had {size:,} at the checkpoint: lines are lost"
            size = self._complete(found)
        if found > size:
            os.truncate(self._path, size)
        return lost

    def _complete(self, found: int) -> int:
        """The size up to the end of the last complete line, so that the next record does not continue a cut one."""
        return self._path.read_bytes().rfind(b"\n") + 1 if found else 0


def strict(value: Any) -> Any:
    """The value as strict JSON, which lacks NaN and infinity: they become strings that `float` reads."""
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else json.dumps(float(value))
    raise TypeError(f"a record can't hold {type(value).__name__}")
