"""Standard streams that are closed (`>&-`) or can't be written to.

A closed stream causes two problems. The next file that is opened gets its file descriptor, so that output meant for the
stream lands in that file; and Python's `sys.stdout` is None. So the null device takes the descriptor at once, opened in
the wrong direction: reading or writing raises an error, and a verb that does neither works.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any

OUTPUT = "standard output"


class _Output(io.FileIO):
    """Standard output by its file descriptor, with a clear error if it is closed."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            raise OSError(errno.EBADF, "the stream is closed, and the output is lost", OUTPUT) from None


def take_closed() -> None:
    """Open the standard streams that are closed. Output to a closed standard error is lost."""
    for number, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, flags), number)  # open takes the lowest free descriptor, which is this one
            os.set_inheritable(number, True)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Output(1, "w", closefd=False)), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w", closefd=False)), encoding="utf-8")


def abandon_output() -> None:
    """Send further standard output to the null device; otherwise Python would report an error at exit."""
    with suppress(OSError, io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
