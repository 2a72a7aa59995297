"""An LSTM cell, and a part that runs it over the tokens of a text, in one direction or in both.

Letters: B rows, L tokens, I inputs, H units.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.core.call import Call
from sixfold.core.init import Normal, parameter
from sixfold.core.parts import ModelPart
from sixfold.core.real_tokens import RealTokens, pick
from sixfold.core.state import States

NOT_EXPORTED = "torch.export unrolls the loop over tokens, so the exported program could read texts of one length only"
_SATURATED = 1e4  # opens a gate fully, or with a minus closes it: σ(±1e4) is exactly 1 and 0, also in half precision


def orthogonal_blocks(tensor: Tensor, *, generator: torch.Generator | None = None) -> None:
    """Fill each gate's matrix (H, H) with a random orthogonal one, which preserves the norm of the state."""
    exact = torch.promote_types(tensor.dtype, torch.float32)  # torch has no QR in half precision
    for block in tensor.split(tensor.shape[1]):
        block.copy_(nn.init.orthogonal_(torch.empty_like(block, dtype=exact), generator=generator))


def forget_gate_open(tensor: Tensor, *, generator: torch.Generator | None = None) -> None:
    """Fill the biases of an LSTM with 0, those of the forget gate with 1: an untrained cell then keeps its content."""
    tensor.zero_().chunk(4)[1].fill_(1)


class LSTMCell(nn.Module):
    """One step of an LSTM. Gate f scales the old content of the cell c, gate i the new content, gate o the output h.

        f_t = σ(W_f h_{t−1} + U_f x_t + b_f)        c̃_t = tanh(W_c h_{t−1} + U_c x_t + b_c)
        i_t = σ(W_i h_{t−1} + U_i x_t + b_i)        c_t = f_t ⊙ c_{t−1} + i_t ⊙ c̃_t
        o_t = σ(W_o h_{t−1} + U_o x_t + b_o)        h_t = o_t ⊙ tanh(c_t)

    W, U and b of the four formulas are stacked in the order i, f, c̃, o, as in torch.
    """

    state = ("h", "c")  # (B, H) each

    def __init__(self, inputs: int, units: int):
        super().__init__()
        self.units = units
        self.input = parameter((4 * units, inputs), Normal(inputs**-0.5))  # U
        self.recurrent = parameter((4 * units, units), orthogonal_blocks)  # W
        self.bias = parameter((4 * units,), forget_gate_open)  # b

    @staticmethod
    def parameters_of(inputs: int, units: int) -> int:
        return 4 * units * (inputs + units + 1)

    def products(self, x: Tensor) -> Tensor:
        """U x + b: (…, I) → (…, 4H), for all tokens at once."""
        return F.linear(x, self.input, self.bias)

    def forward(self, products: Tensor, h: Tensor, c: Tensor) -> States:
        """The token's `products` (B, 4H), and the state before the token → the state after it."""
        i, f, new, o = torch.addmm(products, h, self.recurrent.t()).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * new.tanh()
        return o.sigmoid() * c.tanh(), c

    def weights(self, padded: bool) -> States:
        """The weights that `fused` takes.

        If texts are padded, the caller adds a channel to x that is 1 at padding and 0 at tokens. Its weights close the
        gate i and open the gate f, so that padding leaves c as it is.
        """
        inputs: Tensor = self.input
        if padded:
            hold = self.bias.new_tensor([-_SATURATED, _SATURATED, 0, 0]).repeat_interleave(self.units)
            inputs = torch.cat([inputs, hold[:, None]], 1)
        return inputs, self.recurrent, self.bias, torch.zeros_like(self.bias)  # torch has two biases

    @staticmethod
    def fused(x: Tensor, state: States, weights: list[Tensor], both_ways: bool) -> tuple[Tensor, States]:
        """Run torch's kernel over all tokens (B, L, I), from a state (directions, B, H).

        → h of each token (B, L, directions·H), and the state after the last one
        """
        if x.is_meta:
            return _shapes(x, state, weights)
        has_biases, layers, dropout, batch_first = True, 1, 0.0, True
        training = torch.is_grad_enabled()  # whether the kernel keeps its intermediate results for a backward pass
        y, *after = torch.lstm(x, state, weights, has_biases, layers, dropout, training, both_ways, batch_first)
        return y, tuple(after)


def _shapes(x: Tensor, state: States, weights: list[Tensor]) -> tuple[Tensor, States]:
    """Replaces the kernel on the meta device, where only shapes and the number of operations matter.

    It does the same matrix products and returns the same shapes. torch itself would loop over the tokens in Python.
    """
    h = x.new_empty(*x.shape[:2], state[0].shape[-1])
    for number in range(0, len(weights), 4):
        F.linear(x, weights[number])
        F.linear(h, weights[number + 1])
    return torch.cat([h] * len(state[0]), -1), state


def unless_padding(real_B: Tensor, after: States, before: States) -> States:
    """The state after a token; where the token is padding, the state before it."""
    return tuple(torch.where(real_B[:, None], new, old) for new, old in zip(after, before, strict=True))


class Recurrence(ModelPart):
    """Runs a cell over a text from left to right; with `both_ways`, also a second cell from right to left."""

    not_exported = NOT_EXPORTED

    def __init__(self, inputs: int, units: int, *, both_ways: bool = False):
        super().__init__()
        self.width = units
        self.forwards = LSTMCell(inputs, units)
        self.backwards = LSTMCell(inputs, units) if both_ways else None

    def zeros(self, x: Tensor) -> States:
        """The state before the first token of x (B, L, I)."""
        directions = 1 if self.backwards is None else 2
        return tuple(x.new_zeros(x.shape[0], directions * self.width) for _ in self.forwards.state)

    def forward(self, x: Tensor, state: States, call: Call) -> tuple[Tensor, States]:
        """x (B, L, I), and the state before it → h of each token (B, L, ·), and the state after the last real one.

        With `both_ways` the states are (B, 2H). Their second half is the backward cell's, and must start at zero: the
        backward cell reads the padding first, see `_fused`.
        """
        if x.shape[1] == 1 and self.backwards is None:  # as in decoding
            after = self.forwards(self.forwards.products(x[:, 0]), *state)
            after = after if call.real is None else unless_padding(call.real[:, 0], after, state)
            return after[0][:, None], after
        tokens = RealTokens.of(x, call)
        y, after = self._fused(tokens, state)
        if tokens.lengths is not None:  # padding leaves c as it is, but not h: take h of the last real token
            h = torch.cat([state[0][:, None, : self.width], y[..., : self.width]], 1)
            last = pick(h, tokens.lengths[:, None])[:, 0]
            after = (torch.cat([last, after[0][:, self.width :]], 1), *after[1:])
        return tokens.back(y), after

    def _fused(self, tokens: RealTokens, state: States) -> tuple[Tensor, States]:
        """Run the kernel, which reads padding as if it were tokens: a channel of x marks it, see `LSTMCell.weights`.

        A backward cell reads the padding first. It starts with c = 0, and padding leaves c at 0, so h is 0, too.
        """
        x, padded = tokens.x, tokens.lengths is not None
        if tokens.lengths is not None:
            is_padding = torch.arange(x.shape[1], device=x.device) >= tokens.lengths[:, None]
            x = torch.cat([x, is_padding[..., None].to(x.dtype)], -1)
        cells = [self.forwards] if self.backwards is None else [self.forwards, self.backwards]
        weights = [weight for cell in cells for weight in cell.weights(padded)]
        begin = tuple(s.unflatten(1, (len(cells), -1)).transpose(0, 1).contiguous() for s in state)
        y, after = self.forwards.fused(x, begin, weights, both_ways=len(cells) == 2)
        return y, tuple(s.transpose(0, 1).flatten(1) for s in after)
