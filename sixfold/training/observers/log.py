"""The log of a run: `log.jsonl`, one line of strict JSON for each thing worth remembering."""

from __future__ import annotations

import json
import math
import numbers
import os
from typing import Any

from sixfold.disk.atomic import naming, sync
from sixfold.disk.reading import ordinary
from sixfold.runs.run import Run
from sixfold.training.observers.observer import Observer, Record


class Log(Observer):
    """Writes records to the file. A checkpoint remembers its size, so that a resumed run goes on with the same file."""

    def __init__(self, run: Run):
        self._path = run.log

    def record(self, record: Record) -> None:
        """Append a record, so that it is there when the process is gone."""
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        with naming(self._path), open(self._path, "ab", buffering=0, opener=ordinary) as file:
            # In one write: what a kill leaves is whole lines, and at most one torn at the end.
            while line:  # a disk that is filling up takes a part, and then says so
                line = line[file.write(line) :]

    def size(self) -> int:
        """Bytes of the log. They are on disk: a checkpoint counts on them."""
        if not self._path.exists():
            return 0
        sync(self._path)
        return self._path.stat().st_size

    def cut(self, size: int) -> str | None:
        """Go back to the first `size` bytes, which is where a checkpoint stood. → what is wrong, if anything"""
        found = self._path.stat().st_size if self._path.exists() else 0
        lost = None
        if found < size:
            lost = f"{self._path} has {found:,} bytes, but had {size:,} at the checkpoint: lines are lost"
            size = self._whole(found)
        if found > size:
            os.truncate(self._path, size)
        return lost

    def _whole(self, found: int) -> int:
        """Where the last whole line ends, so that the next does not continue a torn one."""
        return self._path.read_bytes().rfind(b"\n") + 1 if found else 0


def strict(value: Any) -> Any:
    """The same in what JSON knows: it has no NaN and no infinity, so they are strings that `float` reads."""
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
