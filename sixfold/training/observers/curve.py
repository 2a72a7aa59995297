"""A curve for a terminal, of block characters:

7.41 ┤█▅
     │███▅▃▂▁
0.46 ┤██████████▇▆▅▅▄▄▃
"""

from __future__ import annotations

import math
from collections.abc import Sequence

_BLOCKS = " ▁▂▃▄▅▆▇█"
_EIGHTHS = len(_BLOCKS) - 1


class TerminalCurve:
    """Values in the order in which they come, in at most `width` columns: full columns are merged in pairs."""

    def __init__(self, width: int = 60):
        self._width, self._each = width, 1  # values in a complete column
        self._columns: list[tuple[float, int]] = []  # sum and number of the values of each

    def add(self, value: float) -> None:
        """Add a value; one that is not finite is left out."""
        if not math.isfinite(value):
            return
        if self._columns and self._columns[-1][1] < self._each:
            total, number = self._columns[-1]
            self._columns[-1] = total + value, number + 1
            return
        if len(self._columns) == self._width:
            pairs = zip(self._columns[::2], self._columns[1::2], strict=True)
            self._columns = [(a + b, m + n) for (a, m), (b, n) in pairs]
            self._each *= 2
        self._columns.append((value, 1))

    @property
    def means(self) -> list[float]:
        return [total / number for total, number in self._columns]

    def draw(self, height: int) -> list[str]:
        """The curve as lines, the highest value first; nothing for fewer than two columns."""
        return chart(self.means, height) if len(self._columns) > 1 else []


def chart(values: Sequence[float], height: int) -> list[str]:
    """Values as columns of blocks, from the lowest value (one eighth of a line) to the highest (all lines)."""
    low, high = min(values), max(values)
    levels = [1 + round((height * _EIGHTHS - 1) * (value - low) / ((high - low) or 1.0)) for value in values]
    labels = {height - 1: f"{high:.3g}", 0: f"{low:.3g}"}
    margin = max(map(len, labels.values()))
    lines = []
    for line in reversed(range(height)):
        blocks = "".join(_BLOCKS[min(max(level - line * _EIGHTHS, 0), _EIGHTHS)] for level in levels)
        label = labels.get(line, "")
        lines.append(f"{label:>{margin}} {'┤' if label else '│'}{blocks}".rstrip())
    return lines
