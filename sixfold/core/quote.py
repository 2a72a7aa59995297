"""Short quotes of users' values for error messages."""

from __future__ import annotations

import reprlib

_MOST = 200  # characters
_MOST_BITS = 1024  # of an integer that is written in digits: Python refuses to convert very long ones


class _Short(reprlib.Repr):
    """`repr` with bounds on nesting, items and characters; it never builds a longer text on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxlong, self.maxother = 4, _MOST, _MOST, _MOST
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = 8

    def repr_int(self, value: int, level: int) -> str:
        if value.bit_length() > _MOST_BITS:
            return f"an integer of {value.bit_length():,} bits"
        return super().repr_int(value, level)


def quoted(value: object) -> str:
    """`repr(value)`, cut to 200 characters. Nested lists and long integers are never written out."""
    text = _Short().repr(value)
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"
