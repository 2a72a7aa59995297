"""Writes records to TensorBoard, if it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sixfold.runs.run import Run
from sixfold.training.observers.observer import Observer, Record

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_KINDS = ("train", "valid")


class Board(Observer):
    """Writes the numbers in records to TensorBoard; does nothing if it is not installed."""

    def __init__(self, run: Run):
        self._folder = run.directory / "tensorboard"
        self._writer: SummaryWriter | None = None
        self._tried = False

    def record(self, record: Record) -> None:
        if record["kind"] not in _KINDS:
            return
        if not self._tried:
            self._tried, self._writer = True, _writer(self._folder, record["step"])
        if self._writer is None:
            return
        for name, value in record.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and name != "step":
                self._writer.add_scalar(f"{name}/{record['kind']}", value, record["step"])
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _writer(folder: Path, step: int) -> SummaryWriter | None:
    """A writer that begins at this step. TensorBoard drops what an interrupted run wrote from there on."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder, purge_step=step)
