"""Limits on the lengths of inputs and outputs, so that no stack gets more tokens than it can read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

READ, WRITTEN = 1024, 256  # if the model sets no limit: the defaults of the section `decoding`


class LengthLimits(NamedTuple):
    """The most tokens of a source or prompt, and of an output, without BOS and EOS."""

    read: int
    written: int

    @classmethod
    def of(cls, limits: Mapping[str, int], written: int = WRITTEN, read: int = READ) -> LengthLimits:
        """The largest lengths within the limits of the stacks, which include BOS or EOS.

        In a decoder alone, prompt and output share one limit.
        """
        if "only" in limits:  # divided as Generator does
            most = limits["only"]
            written = min(written, most // 2)
            return cls(min(read, most - 1 - written), written)
        reads, wrote = (limits.get(stack, math.inf) - 1 for stack in ("encoder", "decoder"))
        return cls(int(min(read, reads)), int(min(written, wrote)))
