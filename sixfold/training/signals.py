"""SIGINT and SIGTERM ask a run to stop: it finishes its step, saves, and leaves."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_LISTENED = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """While it is open, a signal is noted in place of ending the program. A second one ends it after all."""

    def __init__(self) -> None:
        self.asked = False
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def name(self) -> str | None:
        return None if self.number is None else signal.Signals(self.number).name

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():  # nobody else gets signals
            self._before = {number: signal.signal(number, self._note) for number in _LISTENED}
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.asked, self.number = True, number
        signal.signal(number, self._before[number])

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
