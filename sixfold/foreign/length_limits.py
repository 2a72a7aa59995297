"""How long what is read and written may be, so that no stack is given more tokens than it can read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

READ, WRITTEN = 1024, 256  # where the model sets no limit: as in the section `decoding`


class LengthLimits(NamedTuple):
    """The most tokens of a source or prompt, and of an output, without BOS and EOS."""

    read: int
    written: int

    @classmethod
    def of(cls, limits: Mapping[str, int], written: int = WRITTEN, read: int = READ) -> LengthLimits:
        """What fits the limits of the stacks, BOS or EOS included. Prompt and output share those of a decoder alone."""
        if "only" in limits:  # as Writer shares them
            most = limits["only"]
            written = min(written, most // 2)
            return cls(min(read, most - 1 - written), written)
        reads, wrote = (limits.get(stack, math.inf) - 1 for stack in ("encoder", "decoder"))
        return cls(int(min(read, reads)), int(min(written, wrote)))
