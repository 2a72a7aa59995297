"""Recurrent cells: the simple one, the LSTM and the GRU. Each computes one step, or all tokens by torch's fused kernel.

Letters: B rows, L tokens, I inputs, H units, G gates (with the new content).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.core.init import Normal, declare, parameter
from sixfold.core.real_tokens import pick
from sixfold.core.state import States

_SATURATED = 1e4  # opens a gate fully, or with a minus closes it: σ(±1e4) is exactly 1 and 0, also in half precision


def orthogonal_blocks(tensor: Tensor, *, generator: torch.Generator | None = None) -> None:
    """Fill each gate's matrix (H, H) with a random orthogonal one, which preserves the norm of the state."""
    exact = torch.promote_types(tensor.dtype, torch.float32)  # torch has no QR in half precision
    for block in tensor.split(tensor.shape[1]):
        block.copy_(nn.init.orthogonal_(torch.empty_like(block, dtype=exact), generator=generator))


def forget_gate_open(tensor: Tensor, *, generator: torch.Generator | None = None) -> None:
    """Fill the biases of an LSTM with 0, those of the forget gate with 1: an untrained cell then keeps its content."""
    tensor.zero_().chunk(4)[1].fill_(1)


class Cell(nn.Module):
    """What all cells have: matrices U of the input and W of the state, and a bias b, with the gates' rows stacked.

    A state is a tuple of tensors (B, H); the first is h, the cell's output. A cell's `forward(products, *state)` is one
    step: the token's `products` (B, G·H), and the state before the token → the state after it.
    """

    state: ClassVar[tuple[str, ...]]  # names of the tensors (B, H) that it carries from token to token
    gates: ClassVar[int]  # G

    def __init__(self, inputs: int, units: int):
        super().__init__()
        self.units = units
        self.input = parameter((self.gates * units, inputs), Normal(inputs**-0.5))  # U
        self.recurrent = parameter((self.gates * units, units), orthogonal_blocks)  # W
        self.bias = nn.Parameter(torch.zeros(self.gates * units))  # b

    @classmethod
    def parameters_of(cls, inputs: int, units: int) -> int:
        return cls.gates * units * (inputs + units + 1)

    def products(self, x: Tensor) -> Tensor:
        """U x + b: (…, I) → (…, G·H), for all tokens at once."""
        return F.linear(x, self.input, self.bias)

    def kernel(self, x: Tensor, lengths: Tensor | None, state: States) -> tuple[Tensor, States]:
        """torch's kernel over all tokens → h of each token (B, L, H), and the rest of the state after the last."""
        raise NotImplementedError

    def read(self, x: Tensor, lengths: Tensor | None, state: States) -> tuple[Tensor, States]:
        """All tokens (B, L, I) at once, from the state before them → h of each token, and the state after the last.

        With `lengths` (B,), a row has as many tokens, and zeros after them. The kernel reads those, too, so h of the
        last token is picked from the h of all.
        """
        if x.is_meta:
            return self._shapes(x, state)
        y, rest = self.kernel(x, lengths, state)
        if lengths is None:
            return y, (y[:, -1], *rest)
        return y, (pick(torch.cat([state[0][:, None], y], 1), lengths[:, None])[:, 0], *rest)

    def _shapes(self, x: Tensor, state: States) -> tuple[Tensor, States]:
        """Replaces the kernel on the meta device, where only shapes and the number of operations matter.

        It does the same matrix products and returns the same shapes. torch would loop over the tokens in Python.
        """
        y = x.new_empty(*x.shape[:2], self.units)
        self.products(x)
        F.linear(y, self.recurrent)
        return y, state


def _fused(kernel: Callable[..., Any], x: Tensor, begin: Any, weights: Sequence[Tensor]) -> Any:
    """One of torch's kernels, for one layer in one direction."""
    has_biases, layers, dropout, both_ways, batch_first = True, 1, 0.0, False, True
    training = torch.is_grad_enabled()  # whether the kernel keeps its intermediate results for a backward pass
    return kernel(x, begin, weights, has_biases, layers, dropout, training, both_ways, batch_first)


class RNNCell(Cell):
    """One step of the simple recurrent network: h_t = tanh(W h_{t−1} + U x_t + b)."""

    state = ("h",)
    gates = 1

    def forward(self, products: Tensor, h: Tensor) -> States:
        return (torch.addmm(products, h, self.recurrent.t()).tanh(),)

    def kernel(self, x: Tensor, lengths: Tensor | None, state: States) -> tuple[Tensor, States]:
        weights = [self.input, self.recurrent, self.bias, torch.zeros_like(self.bias)]  # torch has two biases
        y, _ = _fused(torch.rnn_tanh, x, state[0][None].contiguous(), weights)
        return y, ()


class LSTMCell(Cell):
    """One step of an LSTM. Gate f scales the old content of the cell c, gate i the new content, gate o the output h.

        f_t = σ(W_f h_{t−1} + U_f x_t + b_f)        c̃_t = tanh(W_c h_{t−1} + U_c x_t + b_c)
        i_t = σ(W_i h_{t−1} + U_i x_t + b_i)        c_t = f_t ⊙ c_{t−1} + i_t ⊙ c̃_t
        o_t = σ(W_o h_{t−1} + U_o x_t + b_o)        h_t = o_t ⊙ tanh(c_t)

    W, U and b of the four formulas are stacked in the order i, f, c̃, o, as in torch.
    """

    state = ("h", "c")
    gates = 4

    def __init__(self, inputs: int, units: int):
        super().__init__(inputs, units)
        declare(self.bias, forget_gate_open)

    def forward(self, products: Tensor, h: Tensor, c: Tensor) -> States:
        i, f, new, o = torch.addmm(products, h, self.recurrent.t()).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * new.tanh()
        return o.sigmoid() * c.tanh(), c

    def kernel(self, x: Tensor, lengths: Tensor | None, state: States) -> tuple[Tensor, States]:
        """The kernel returns c after the last token only, so padding must leave c as it is.

        A channel is added to x that is 1 at padding and 0 at tokens. Its weights close the gate i and open the gate f.
        """
        inputs: Tensor = self.input
        if lengths is not None:
            is_padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
            x = torch.cat([x, is_padding[..., None].to(x.dtype)], -1)
            hold = self.bias.new_tensor([-_SATURATED, _SATURATED, 0, 0]).repeat_interleave(self.units)
            inputs = torch.cat([inputs, hold[:, None]], 1)
        weights = [inputs, self.recurrent, self.bias, torch.zeros_like(self.bias)]
        y, _, c = _fused(torch.lstm, x, [s[None].contiguous() for s in state], weights)
        return y, (c[0],)


class GRUCell(Cell):
    """One step of a gated recurrent unit. Gate r lets the old state into the new content, gate z keeps the old state.

        r_t = σ(W_r h_{t−1} + U_r x_t + b_r)        h̃_t = tanh(r_t ⊙ (W_h h_{t−1} + b′) + U_h x_t + b_h)
        z_t = σ(W_z h_{t−1} + U_z x_t + b_z)        h_t = (1 − z_t) ⊙ h̃_t + z_t ⊙ h_{t−1}

    W, U and b of the three formulas are stacked in the order r, z, h̃, as in torch.
    """

    state = ("h",)
    gates = 3

    def __init__(self, inputs: int, units: int):
        super().__init__(inputs, units)
        self.recurrent_bias = nn.Parameter(torch.zeros(units))  # b′

    @classmethod
    def parameters_of(cls, inputs: int, units: int) -> int:
        return super().parameters_of(inputs, units) + units

    def forward(self, products: Tensor, h: Tensor) -> States:
        r, z, of_input = products.chunk(3, -1)
        of_r, of_z, of_new = F.linear(h, self.recurrent, self._second_bias()).chunk(3, -1)
        new = ((r + of_r).sigmoid() * of_new + of_input).tanh()
        return (torch.lerp(new, h, (z + of_z).sigmoid()),)

    def kernel(self, x: Tensor, lengths: Tensor | None, state: States) -> tuple[Tensor, States]:
        weights = [self.input, self.recurrent, self.bias, self._second_bias()]
        y, _ = _fused(torch.gru, x, state[0][None].contiguous(), weights)
        return y, ()

    def _second_bias(self) -> Tensor:
        """What is added to W h: b′ for the new content; the gates have the bias b only."""
        return F.pad(self.recurrent_bias, (2 * self.units, 0))
