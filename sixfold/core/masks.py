"""What queries may see: everything, the past, or where a mask is True."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def past(length: int, device: torch.device) -> Tensor:
    """What is left when the future is hidden: query i sees key j when j <= i.

    j → 0 1 2 3
    i 0 ■ · · ·
      1 ■ ■ · ·
      2 ■ ■ ■ ·
      3 ■ ■ ■ ■      (L, L), True where it may look
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


class Sight(NamedTuple):
    """What queries may see: everything, the past, or where a mask is True. Never mask and causal at once.

    `causal` only where queries and keys are the same tokens: the kernel aligns its mask at the top left.
    """

    mask: Tensor | None = None  # (B or 1, H or 1, L or 1, M)
    causal: bool = False

    @classmethod
    def among(cls, real_BL: Tensor | None, *, causal: bool) -> Sight:
        """Real tokens may be seen; among themselves, in a causal stack, only the past ones."""
        if real_BL is None:
            return cls(causal=causal)
        mask = real_BL[:, None, None, :]
        return cls(mask & past(real_BL.shape[1], real_BL.device) if causal else mask)

    def written_out(self, q: Tensor) -> Tensor | None:
        """The same as a mask."""
        return past(q.shape[-2], q.device) if self.causal else self.mask

    def softmax(self, scores_BHLM: Tensor) -> Tensor:
        """The softmax over the keys that may be seen; the others have weight 0, and so has every key if none may."""
        mask = self.written_out(scores_BHLM)
        if mask is None:
            return scores_BHLM.softmax(-1)
        lowest = torch.finfo(scores_BHLM.dtype).min
        return scores_BHLM.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0)


class LazySight:
    """A Sight that is made when a part first asks for it, once per pass: layers of linear cost never pay for L × M."""

    def __init__(self, make: Callable[[], Sight]):
        self._make = make
        self._made: Sight | None = None

    def __call__(self) -> Sight:
        if self._made is None:
            self._made = self._make()
        return self._made

    @classmethod
    def of(cls, sight: Sight) -> LazySight:
        return cls(lambda: sight)
