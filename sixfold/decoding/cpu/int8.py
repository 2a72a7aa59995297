"""Linear maps in int8: on a CPU several times as fast, and a little less exact.

    y = x Wᵀ + b      x ≈ a · X,  a = max|x| / 127 of each row,        X integers from −127 to 127
                      W ≈ s · W', s = max|w| / 127 of each output,     W' the same (or ± 63: see `largest_weight`)
                      y ≈ a s · (X W'ᵀ) + b, whose sums are exact

Each row of x has its own scale, so the result of one sentence does not depend on its neighbours in the batch. But the
last bit of a float can decide to which integer it is rounded, and in float32 the last bits depend on the order of
summation, which torch chooses by the shape of the batch. So the rest of the model (norms, attention, activations,
routers) computes in float64, whose rounding noise is far below one int8 step. (FusedStep computes each row by itself in
float32, in a fixed order, and so does not depend on the batch either.)

Letters: R rows, I inputs, O outputs.
"""

from __future__ import annotations

import copy
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sixfold.core import forms
from sixfold.core.parts import ModelPart
from sixfold.decoding.cpu import gemm
from sixfold.decoding.cpu.torch_private import Unconverted, int8_product, pack, packed_product
from sixfold.models.model import Model
from sixfold.transformer import TokenEmbedding

_LEAST = 1e-30  # the scale of a row of zeros
_MANY = 1 << 17  # results from which on the product that also scales them (oneDNN's) is faster

_FEWEST = 2  # fewest inputs of a linear map in int8: with one input, torch's product is wrong


@cache
def largest_weight() -> int:
    """127 if a trial product with ±127 is exact on this machine, else 63.

    CPUs without int8 instructions add two products in 16 bits, which overflow with 8-bit weights.
    """
    signs = torch.tensor([1, -1]).repeat(16)
    x = (127 * signs[:, None]).expand(-1, 64).to(torch.int8)
    exact = int8_product(x, x.t()) == 64 * 127**2 * torch.outer(signs, signs)
    return 127 if bool(exact.all()) else 63


class Matrix:
    """Weights (O, I) in int8."""

    def __init__(self, weight: Tensor):
        exact = weight.detach().float()
        scale = exact.abs().amax(1).clamp_min(_LEAST) / largest_weight()  # (O,)
        self.int8 = (exact / scale[:, None]).round().to(torch.int8).t()  # (I, O), in memory (O, I)
        self.scale = scale / 127  # s / 127: times the largest |x| of a row it is a · s

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """(…, I) → (…, O), in the precision of x"""
        rows = x.reshape(-1, x.shape[-1]).double()
        largest = torch.maximum(rows.amax(1, keepdim=True), rows.amin(1, keepdim=True).neg_()).clamp_min_(_LEAST)
        y = self._scaled_sums((rows * (127 / largest)).round_().to(torch.int8)).double().mul_(largest)
        if bias is not None:
            y += bias
        return y.to(x.dtype).view(*x.shape[:-1], -1)

    def _scaled_sums(self, rows: Tensor) -> Tensor:
        """int8 (R, I) → s · (X W'ᵀ), (R, O), by the faster of two products with equal results."""
        if len(rows) * self.int8.shape[1] >= _MANY and self._packed is not None:
            return packed_product(rows, self._packed, self.scale, self._zeros)
        return int8_product(rows, self.suited_to(len(rows))).float().mul_(self.scale)

    def suited_to(self, rows: int) -> Tensor:
        """The integers (I, O), in the memory layout that is fastest for this number of rows."""
        return self.int8 if rows == 1 else self._by_inputs

    @cached_property
    def panels(self) -> np.ndarray | None:
        """For `gemm.multiply_int8`; None if this CPU has no int8 tiles."""
        return gemm.int8_panels(self.int8.t().numpy())

    @cached_property
    def _by_inputs(self) -> Tensor:
        return self.int8.contiguous()

    @cached_property
    def _packed(self) -> Tensor | None:
        """For `packed_product`; None if this torch has none."""
        return pack(self.int8.t().contiguous())

    @cached_property
    def _zeros(self) -> Tensor:
        return torch.zeros(self.int8.shape[1], dtype=torch.long)


class Int8Linear(Unconverted, ModelPart, nn.Linear, form=forms.Int8LinearForm):
    """A linear map whose product is in int8, from float64 to float64."""

    def __init__(self, linear: nn.Linear):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias, self.matrix, self._exact = linear.bias, Matrix(linear.weight), linear.weight.detach()

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight before it was quantised, for parts that multiply by hand."""
        return self._exact.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix(x, self.bias)


class Int8Table(Unconverted, TokenEmbedding, form=forms.Int8EmbeddingForm):
    """A table that looks words up in float64, unquantised, and scores them in int8."""

    def __init__(self, table: TokenEmbedding):
        nn.Module.__init__(self)
        self.weight = nn.Parameter(table.weight.detach().float(), requires_grad=False)  # no copy if it is float32
        self.matrix = Matrix(table.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).double()

    def logits(self, x: Tensor) -> Tensor:
        return self.matrix(x)


def is_quantised(model: nn.Module) -> bool:
    """Whether `quantised` returned this model."""
    return any(isinstance(part, Int8Linear | Int8Table) for part in model.modules())


def quantised(model: Model) -> Model:
    """A copy of the model for decoding, with linear maps in int8 and the rest in float64.

    Each linear map is replaced at every reference to it: `deepcopy` takes the replacements from its memo.
    """
    if next(model.parameters()).device.type != "cpu":
        raise ValueError("int8 works on a CPU only; give --device cpu, or leave precision float32")
    kinds: dict[type, Any] = {nn.Linear: Int8Linear, TokenEmbedding: Int8Table}
    parts: list[Any] = [part for part in model.modules() if type(part) in kinds]
    instead = {id(part): kinds[type(part)](part) for part in parts if part.weight.shape[1] >= _FEWEST}
    return copy.deepcopy(model, instead).double().eval()
