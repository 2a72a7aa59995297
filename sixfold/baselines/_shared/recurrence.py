"""A part that runs a recurrent cell over the tokens of a text, in one direction or in both.

Letters: B rows, L tokens, I inputs, H units.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sixfold.baselines._shared.cells import Cell
from sixfold.core.call import Call
from sixfold.core.parts import ModelPart
from sixfold.core.real_tokens import RealTokens
from sixfold.core.state import States

NOT_EXPORTED = "torch.export unrolls the loop over tokens, so the exported program could read texts of one length only"


def unless_padding(real_B: Tensor, after: States, before: States) -> States:
    """The state after a token; where the token is padding, the state before it."""
    return tuple(torch.where(real_B[:, None], new, old) for new, old in zip(after, before, strict=True))


class Recurrence(ModelPart):
    """Runs a cell over a text from left to right; with `both_ways`, also a second cell from right to left."""

    not_exported = NOT_EXPORTED

    def __init__(self, cell: type[Cell], inputs: int, units: int, *, both_ways: bool = False):
        super().__init__()
        self.forwards = cell(inputs, units)
        self.backwards = cell(inputs, units) if both_ways else None

    def zeros(self, x: Tensor) -> States:
        """The state before the first token of x (B, L, I)."""
        directions = 1 if self.backwards is None else 2
        return tuple(x.new_zeros(x.shape[0], directions * self.forwards.units) for _ in self.forwards.state)

    def forward(self, x: Tensor, state: States, call: Call) -> tuple[Tensor, States]:
        """x (B, L, I), and the state before it → h of each token (B, L, ·), and the state after the last real one.

        With `both_ways`, h and the states are twice as wide: [→h; ←h].
        """
        if self.backwards is not None:
            return self._both_ways(RealTokens.of(x, call), state)
        if x.shape[1] == 1:  # as in decoding
            after = self.forwards(self.forwards.products(x[:, 0]), *state)
            after = after if call.real is None else unless_padding(call.real[:, 0], after, state)
            return after[0][:, None], after
        tokens = RealTokens.of(x, call)
        y, after = self.forwards.read(tokens.x, tokens.lengths, state)
        return tokens.back(y), after

    def _both_ways(self, tokens: RealTokens, state: States) -> tuple[Tensor, States]:
        """The second cell reads each row from its last real token to its first, and then the padding."""
        assert self.backwards is not None
        forth, back = zip(*(s.chunk(2, 1) for s in state), strict=True)
        y, after = self.forwards.read(tokens.x, tokens.lengths, forth)
        z, end = self.backwards.read(tokens.reversed(tokens.x), tokens.lengths, back)
        both = tuple(torch.cat(pair, 1) for pair in zip(after, end, strict=True))
        return tokens.back(torch.cat([y, tokens.reversed(z)], -1)), both
