"""`Sight`: the keys that queries may see. These are all keys, the past ones, or those where a mask is True."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


def past(length: int, device: torch.device) -> Tensor:
    """The causal mask: query i sees key j if j <= i.

    j → 0 1 2 3
    i 0 ■ · · ·
      1 ■ ■ · ·
      2 ■ ■ ■ ·
      3 ■ ■ ■ ■      (L, L), ■ is True
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


class Sight(NamedTuple):
    """The keys that queries may see: all, the past ones if `causal`, or those where `mask` is True. Never both.

    `causal` requires that queries and keys are the same tokens, since the kernel aligns its mask at the top left.
    """

    mask: Tensor | None = None  # (B or 1, H or 1, L or 1, M)
    causal: bool = False

    @classmethod
    def among(cls, real_BL: Tensor | None, *, causal: bool) -> Sight:
        """The sight on real tokens; if `causal`, which is for self-attention, only on past ones."""
        if real_BL is None:
            return cls(causal=causal)
        mask = real_BL[:, None, None, :]
        return cls(mask & past(real_BL.shape[1], real_BL.device) if causal else mask)

    def written_out(self, q: Tensor) -> Tensor | None:
        """The sight as a mask, also if it is causal; None if all keys may be seen."""
        return past(q.shape[-2], q.device) if self.causal else self.mask

    def softmax(self, scores_BHLM: Tensor) -> Tensor:
        """The softmax over the keys that may be seen. All other keys have weight 0, also if no key may be seen."""
        mask = self.written_out(scores_BHLM)
        if mask is None:
            return scores_BHLM.softmax(-1)
        lowest = torch.finfo(scores_BHLM.dtype).min
        return scores_BHLM.masked_fill(~mask, lowest).softmax(-1).masked_fill(~mask, 0)


class LazySight:
    """A Sight that is made when a part first asks for it, once per pass. Layers of linear cost avoid the L × M mask."""

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
