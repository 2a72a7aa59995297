"""SIGINT and SIGTERM ask a run to stop: it says so at once, finishes its step, saves, and leaves.

Python calls a handler only between two of its own instructions, and a backward pass is one instruction, which takes
seconds in a large model. But `signal.set_wakeup_fd` writes the number of a signal to a pipe at once; a thread reads it.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_LISTENED = (signal.SIGINT, signal.SIGTERM)
_END = b"\0"  # no signal has this number
_PATIENCE = 1.0  # seconds that a second signal waits until what it costs has been said


class Signals:
    """While it is open, a signal is noted in place of ending the program. A second one of its kind ends it after all.

    `tell(name, again)` hears of each at once, in another thread.
    """

    def __init__(self, tell: Callable[[str, bool], None] = lambda name, again: None) -> None:
        self.asked = False
        self.number: int | None = None
        self._tell, self._told = tell, threading.Event()
        self._before: dict[int, Any] = {}
        self._noted: set[int] = set()
        self._heard: list[int] = []  # by the thread that listens
        self._pipe: tuple[int, int] | None = None  # to read from, and to write to
        self._wakeup = -1  # where numbers of signals went before

    @property
    def name(self) -> str | None:
        return None if self.number is None else signal.Signals(self.number).name

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():  # nobody else gets signals
            self._noted, self._heard, self._pipe = set(), [], os.pipe()
            os.set_blocking(self._pipe[1], False)
            self._thread = threading.Thread(target=self._listen, args=self._pipe[:1], daemon=True)
            self._thread.start()
            self._before = {number: signal.signal(number, self._note) for number in _LISTENED}
            self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number not in self._noted:
            self._noted.add(number)
            self.asked, self.number = True, number
            if self._heard.count(number) < 2:
                return  # else both came within one instruction, for which Python calls its handler once
        self._told.wait(_PATIENCE)
        if callable(self._before[number]):  # of SIGINT, mostly what raises KeyboardInterrupt
            self._before[number](number, frame)
        else:
            raise SystemExit(128 + number)

    def _listen(self, pipe: int) -> None:
        heard = self._heard
        while True:
            for number in os.read(pipe, 64):
                if number in _LISTENED:
                    heard.append(number)
                    again = heard.count(number) > 1
                    self._tell(signal.Signals(number).name, again)
                    if again:
                        self._told.set()
                elif number == ord(_END):
                    return

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._pipe is not None:
            signal.set_wakeup_fd(self._wakeup)
            os.write(self._pipe[1], _END)  # and not by closing it: another process may have inherited it
            self._thread.join()
            for end in self._pipe:
                os.close(end)
            self._pipe = None
