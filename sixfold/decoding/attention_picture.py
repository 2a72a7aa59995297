"""A picture of attention for a terminal: a row for each target piece, a column for each source piece.

       d o g
     D ██
    AO   ▒▒░░
     G     ██

Shades are block characters, so that it works without colour and can be pasted anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

if TYPE_CHECKING:
    from torch import Tensor

    from sixfold.decoding.translator import SourceAttention

SHADES = " ░▒▓█"
CELL = 2  # characters of a column: about as wide as a line is high, and room for wide letters


def picture(weights_Ln: Tensor, rows: Sequence[str], columns: Sequence[str], width: int = 80) -> str:
    """Draw weights from 0 to 1. Columns that do not fit into `width` continue in another picture below."""
    if tuple(weights_Ln.shape) != (len(rows), len(columns)):
        raise ValueError(
            f"{len(rows)} rows and {len(columns)} columns need weights of that shape, got {tuple(weights_Ln.shape)}"
        )
    labels = [readable(row) for row in rows]
    margin = max(map(cell_len, labels), default=0) + 1
    fit = max((width - margin) // CELL, 1)
    pictures = []
    for start in range(0, len(columns), fit):
        heads = [readable(column) for column in columns[start : start + fit]]
        lines = [" " * margin + line for line in _downwards(heads)]
        for label, line in zip(labels, weights_Ln[:, start : start + fit].tolist(), strict=True):
            lines.append(_fill(label, margin - 1, right=True) + " " + "".join(shade(weight) * CELL for weight in line))
        pictures.append("\n".join(line.rstrip() for line in lines))
    return "\n\n".join(pictures)


def drawn(seen: SourceAttention, *, layer: int | None = None, head: int | None = None, width: int = 80) -> str:
    """Cross-attention as a picture under a caption. Layers and heads count from 1.

    Without a layer, the one whose mean over heads is sharpest; without a head, the mean of all.
    """
    layers, heads = seen.weights.shape[:2]
    for name, number, most in (("layer", layer, layers), ("head", head, heads)):
        if number is not None and not 1 <= number <= most:
            raise ValueError(f"there is no {name} {number}: the decoder has {most} {name}s")
    means_LLn = seen.weights.mean(1)  # (layers, L, n)
    chosen = int(means_LLn.amax(-1).mean(-1).argmax()) if layer is None else layer - 1
    weights_Ln = means_LLn[chosen] if head is None else seen.weights[chosen, head - 1]
    which = "mean of its heads" if head is None else f"head {head} of {heads}"
    about = f"cross-attention of decoder layer {chosen + 1} of {layers}, {which}: source above, output at the left"
    return f"{about}\n\n{picture(weights_Ln, seen.target, seen.source, width)}"


def shade(weight: float) -> str:
    """One of five shades; a weight outside 0 to 1 gets the nearest, NaN the lightest."""
    share = min(max(weight, 0.0), 1.0) if weight == weight else 0.0
    return SHADES[round(share * (len(SHADES) - 1))]


def readable(piece: str) -> str:
    """A piece with visible spaces, and with escapes for characters that are not printable."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in piece.replace(" ", "▁"))
    return "".join(shown)


def _downwards(heads: Sequence[str]) -> Iterator[str]:
    """The columns' names, written from top to bottom so that they end above their columns."""
    height = max(map(len, heads), default=0)
    for letters in zip(*(head.rjust(height) for head in heads), strict=True):
        yield "".join(_fill(letter, CELL) for letter in letters)


def _fill(text: str, width: int, right: bool = False) -> str:
    """Add spaces up to a width in terminal cells: some letters take two, some none."""
    spaces = " " * max(width - cell_len(text), 0)
    return spaces + text if right else text + spaces
