"""Linear maps in whole numbers of 8 bits: on a CPU several times as fast, and a little less exact.

    y = x Wᵀ + b      x ≈ a · X,  a = max|x| / 127 of each row,        X whole numbers from −127 to 127
                      W ≈ s · W', s = max|w| / 127 of each output,     W' the same (or ± 63: see `largest_weight`)
                      y ≈ a s · (X W'ᵀ) + b, whose sums are exact

Each row of x has a scale of its own, so that what comes out for one sentence does not depend on its neighbours. But to
what a number is rounded depends on every bit of it, and the last bits of float32 depend on the order of sums, which is
another in other company. So all else of a model (norms, attention, activations, routers) computes in double precision,
whose last bits are gone when 8 are left. (FusedStep has another way to the same end: there each row is computed by
itself, in single precision, whoever its neighbours are.)

Letters: R rows, I inputs, O outputs.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Hashable
from functools import cache, cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from sixfold.core import forms
from sixfold.core.parts import ModelPart
from sixfold.decoding.cpu import gemm
from sixfold.models.model import Model
from sixfold.transformer import TokenEmbedding

_LEAST = 1e-30  # a row of zeros has a scale, too
_MANY = 1 << 17  # results, from which on it is worth the trouble to have them scaled by the product itself

_FEWEST = 2  # inputs of a map in 8 bits: with a single one, torch's product is wrong
_SAMPLE = 512  # numbers of a tensor

_made: WeakKeyDictionary[Model, tuple[Any, Model]] = WeakKeyDictionary()


def sample(tensor: Tensor) -> Hashable:
    """What is no longer the same when a tensor has changed: torch's count of changes, and some of its numbers.

    Not all changes are counted: those by fused optimisers, and through `.data`, are not; and where they concern a few
    numbers only, they may be overlooked.
    """
    exact = tensor.detach()
    numbers = (exact if exact.dtype == torch.float32 else exact.float()).numpy().reshape(-1)
    if tensor.is_inference():  # of these, no change is counted
        return tensor.data_ptr(), hashlib.sha256(numbers.tobytes()).digest()
    return tensor.data_ptr(), tensor._version, numbers[:: max(1, numbers.size // _SAMPLE)].tobytes()


def fingerprint(model: nn.Module) -> tuple[Any, ...]:
    """What is no longer the same when a model has changed: its parts and what they are like, its numbers, its hooks."""
    parts = list(model.modules())
    numbers = (each for part in parts for each in (*part._parameters.values(), *part._buffers.values()))
    made = [(type(part), *part._modules.values(), *part.__dict__.values()) for part in parts]
    heard = [(*part._forward_hooks.values(), *part._forward_pre_hooks.values()) for part in parts]
    return made, heard, [sample(tensor) for tensor in numbers if tensor is not None]


def same(one: Any, other: Any) -> bool:
    """Whether two fingerprints are; if they can't be compared, they are not."""
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):
        return False


@cache
def largest_weight() -> int:
    """The largest whole number that a weight may be, so that products are exact on this machine: it is tried.

    CPUs without instructions for it add up two products in 16 bits, which overflow with numbers of 8 bits.
    """
    signs = torch.tensor([1, -1]).repeat(16)
    x = (127 * signs[:, None]).expand(-1, 64).to(torch.int8)
    exact = torch._int_mm(x, x.t()) == 64 * 127**2 * torch.outer(signs, signs)
    return 127 if bool(exact.all()) else 63


class Matrix:
    """Weights (O, I) in 8 bits."""

    def __init__(self, weight: Tensor):
        exact = weight.detach().float()
        scale = exact.abs().amax(1).clamp_min(_LEAST) / largest_weight()  # (O,)
        self.whole = (exact / scale[:, None]).round().to(torch.int8).t()  # (I, O), each output's numbers side by side
        self.scale = scale / 127  # and that of the largest number of a row, which stands for 127

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """(…, I) → (…, O), in the precision of x"""
        rows = x.reshape(-1, x.shape[-1]).double()
        largest = torch.maximum(rows.amax(1, keepdim=True), rows.amin(1, keepdim=True).neg_()).clamp_min_(_LEAST)
        y = self._scaled_sums((rows * (127 / largest)).round_().to(torch.int8)).double().mul_(largest)
        if bias is not None:
            y += bias
        return y.to(x.dtype).view(*x.shape[:-1], -1)

    def _scaled_sums(self, rows: Tensor) -> Tensor:
        """Whole numbers (R, I) → s · (X W'ᵀ), (R, O): by whichever way is faster, with the same result."""
        if len(rows) * self.whole.shape[1] >= _MANY and self._packed is not None:
            shifted = rows.view(torch.uint8).bitwise_xor_(128)  # from 0 to 255, and 128 stands for 0
            rest: tuple[Any, ...] = (None, 1.0, 0, torch.float32, "none", [], "")  # no bias, and sums as they are
            packed = self._packed, self.scale, self._zeros
            return torch.ops.onednn.qlinear_pointwise(shifted, 1.0, 128, *packed, *rest)
        return torch._int_mm(rows, self.suited_to(len(rows))).float().mul_(self.scale)

    def suited_to(self, rows: int) -> Tensor:
        """The whole numbers (I, O), lying in memory as so many rows are multiplied the fastest."""
        return self.whole if rows == 1 else self._by_inputs

    @cached_property
    def panels(self) -> np.ndarray | None:
        """For `products.multiply_whole`, if this CPU knows it."""
        return gemm.whole_panels(self.whole.t().numpy())

    @cached_property
    def _by_inputs(self) -> Tensor:
        return self.whole.contiguous()

    @cached_property
    def _packed(self) -> Tensor | None:
        """The weights as the engine wants them that multiplies, scales and converts at once; None where it is not."""
        if "onednn" not in torch.backends.quantized.supported_engines:
            return None
        return torch.ops.onednn.qlinear_prepack(self.whole.t().contiguous(), None)

    @cached_property
    def _zeros(self) -> Tensor:
        return torch.zeros(self.whole.shape[1], dtype=torch.long)


class _AsItIs(ModelPart):
    """What stays in the precision it has, whatever the model around it is brought to: its numbers are another's."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return self


class Int8Linear(_AsItIs, nn.Linear, form=forms.Int8LinearForm):
    """A linear map whose product is in 8 bits, from double precision to double precision."""

    def __init__(self, linear: nn.Linear):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias, self.matrix, self._exact = linear.bias, Matrix(linear.weight), linear.weight.detach()

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """For whoever reads it and makes a product of his own."""
        return self._exact.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix(x, self.bias)


class Int8Table(_AsItIs, TokenEmbedding, form=forms.Int8EmbeddingForm):
    """A table that looks words up as they are, in double precision, and scores them in 8 bits."""

    def __init__(self, table: TokenEmbedding):
        nn.Module.__init__(self)
        self.weight = nn.Parameter(table.weight.detach().float(), requires_grad=False)  # the same, if it is in float32
        self.matrix = Matrix(table.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).double()

    def logits(self, x: Tensor) -> Tensor:
        return self.matrix(x)


def is_quantised(model: nn.Module) -> bool:
    """Whether it is what `quantised` makes."""
    return any(isinstance(part, Int8Linear) for part in model.modules())


def quantised(model: Model) -> Model:
    """The same model for decoding, with linear maps in 8 bits, and all else in double precision.

    It is made once, and anew when the model has changed.
    """
    if next(model.parameters()).device.type != "cpu":
        raise ValueError("int8 is for a CPU; give --device cpu, or leave precision float32")
    now, made = fingerprint(model), _made.get(model)
    if made is None or not same(made[0], now):
        made = _made[model] = now, _quantised(model)
    return made[1]


def _quantised(model: Model) -> Model:
    """A copy in which every linear map, wherever it is referred to, is another."""
    kinds: dict[type, Any] = {nn.Linear: Int8Linear, TokenEmbedding: Int8Table}
    parts: list[Any] = [part for part in model.modules() if type(part) in kinds]
    instead = {id(part): kinds[type(part)](part) for part in parts if part.weight.shape[1] >= _FEWEST}
    return copy.deepcopy(model, instead).double().eval()
