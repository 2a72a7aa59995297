"""The tokens of a text without the padding between them, for parts that read one token after the other.

Letters: B rows, L tokens, C channels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sixfold.core.call import Call


class RealTokens(NamedTuple):
    """The real tokens of each row, in order from the left, and zeros after them.

    x       · · a b c        d · e ·              ·  padding
    here    a b c 0 0        d e 0 0
    """

    x: Tensor  # (B, L, C)
    lengths: Tensor | None  # (B,): real tokens of each row; None: all are real
    order: Tensor | None  # (B, L): the index here of each token of the input; None: the same

    @classmethod
    def of(cls, x: Tensor, call: Call) -> RealTokens:
        if call.real is None:
            return cls(x, None, None)
        x, lengths = x.masked_fill(~call.real[..., None], 0), call.real.sum(1)
        if call.cache is None and 1 == call.positions.shape[0] < x.shape[0]:  # padding is at the end only
            return cls(x, lengths, None)
        order_BL = (call.real.cumsum(1) - 1).clamp(min=0)
        return cls(torch.zeros_like(x).scatter_add(1, order_BL[..., None].expand_as(x), x), lengths, order_BL)

    def reversed(self, y: Tensor) -> Tensor:
        """(B, L, ·) with the real tokens of each row in reverse order; padding stays at the end."""
        if self.lengths is None:
            return y.flip(1)
        here = torch.arange(y.shape[1], device=y.device)
        there_BL = self.lengths[:, None] - 1 - here
        return pick(y, torch.where(there_BL < 0, here, there_BL))

    def back(self, y: Tensor) -> Tensor:
        """Results (B, L, ·) for the tokens, in the order of the input."""
        return y if self.order is None else pick(y, self.order)


def pick(x: Tensor, index: Tensor) -> Tensor:
    """Tokens of (B, ·, C) by index, (B or 1, L) → (B, L, C)."""
    return x.gather(1, index[..., None].expand(x.shape[0], -1, x.shape[2]))
