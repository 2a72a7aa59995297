"""The record that a decoder reads of its encoder.

Letters: S sentences, n source length, D model width.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Memory(NamedTuple):
    """What the encoder leaves for the decoder."""

    states: tuple[Tensor, ...]  # (S, n, D) for each decoder layer; here the same one for all
    real: Tensor | None  # (S, n): which of it is not padding, None if nothing is
