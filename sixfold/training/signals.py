"""SIGINT and SIGTERM stop a run: it prints a message at once, finishes its step, saves, and exits.

Python calls a signal handler only between two bytecode instructions, and a backward pass is one instruction, which
takes seconds in a large model. `signal.set_wakeup_fd` writes the signal's number to a pipe at once; a thread reads it.
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
_PATIENCE = 1.0  # seconds that a second signal waits for its message to be printed


class Signals:
    """While it is open, a first signal is only recorded; a second one of the same kind ends the program.

    For each signal, `tell(name, again)` is called at once, in another thread.
    """

    def __init__(self, tell: Callable[[str, bool], None] = lambda name, again: None) -> None:
        self.asked = False
        self.number: int | None = None
        self._tell, self._told = tell, threading.Event()
        self._before: dict[int, Any] = {}
        self._noted: set[int] = set()
        self._heard: list[int] = []  # signals that the listening thread has read
        self._pipe: tuple[int, int] | None = None  # its read end and its write end
        self._wakeup = -1  # the wakeup descriptor before

    @property
    def name(self) -> str | None:
        return None if self.number is None else signal.Signals(self.number).name

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():  # only the main thread receives signals
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
                return  # otherwise both came within one instruction, and Python calls the handler only once
        self._told.wait(_PATIENCE)
        if callable(self._before[number]):  # for SIGINT usually the one that raises KeyboardInterrupt
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
            os.write(self._pipe[1], _END)  # closing is not enough: a child process may have inherited it
            self._thread.join()
            for end in self._pipe:
                os.close(end)
            self._pipe = None
