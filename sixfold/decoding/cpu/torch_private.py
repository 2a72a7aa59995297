"""All uses of torch's internals in fast decoding, in one file.

    int8_product          (R, I) int8 × (I, O) int8 → (R, O) int32, exact
    pack, packed_product  the same with a scale, by oneDNN, where this build of torch has it
    change_count          torch's count of in-place changes of a tensor
    hooks, tensors        the hooks of a module; its own parameters and buffers
    Unconverted           a module that keeps its precision when a model around it is converted

`tests/decoding/cpu/test_torch_private.py` fails when torch changes one of them. Until this file is adapted, products
are computed in float64, which is slow but exact, and nothing computed from weights is kept from call to call.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_SHIFT = 128  # oneDNN takes numbers from 0 to 255; this is their zero point


def int8_product(x: Tensor, weight_IO: Tensor, out: Tensor | None = None) -> Tensor:
    """x (R, I) times a weight, both int8 → int32, exact. For I ≥ 2: with I = 1 torch's product is wrong."""
    try:
        return torch._int_mm(x, weight_IO) if out is None else torch._int_mm(x, weight_IO, out=out)
    except AttributeError:
        product = (x.double() @ weight_IO.double()).to(torch.int32)
        return product if out is None else out.copy_(product)


def pack(weight_OI: Tensor) -> Tensor | None:
    """An int8 weight packed for `packed_product`; None if this torch has no such product."""
    if "onednn" not in torch.backends.quantized.supported_engines:
        return None
    try:
        return torch.ops.onednn.qlinear_prepack(weight_OI, None)
    except AttributeError:
        return None


def packed_product(x: Tensor, packed: Tensor, scale_O: Tensor, zeros_O: Tensor) -> Tensor:
    """scale · (x Wᵀ) in float32, for x (R, I) in int8, which is overwritten."""
    shifted = x.view(torch.uint8).bitwise_xor_(_SHIFT)
    weight = packed, scale_O, zeros_O
    rest: tuple[Any, ...] = (None, 1.0, 0, torch.float32, "none", [], "")  # no bias, output scale 1, no activation
    return torch.ops.onednn.qlinear_pointwise(shifted, 1.0, _SHIFT, *weight, *rest)


def change_count(tensor: Tensor) -> int | None:
    """torch's count of in-place changes; None if it does not count them for this tensor."""
    try:
        return None if tensor.is_inference() else tensor._version
    except AttributeError:
        return None


def hooks(module: nn.Module) -> list[Any]:
    """The functions that torch calls before or after `forward`."""
    return [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]


def tensors(module: nn.Module) -> list[Tensor]:
    """The module's own parameters and buffers, without those of its submodules."""
    return [each for each in (*module._parameters.values(), *module._buffers.values()) if each is not None]


class Unconverted(nn.Module):
    """A module whose own tensors stay as they are when `.double()` or `.to()` converts a model around it."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return self
