"""The row-wise parts of a layer: linear maps, norms, feed-forward layers, in reused buffers.

The result of a row does not depend on the other rows, to the last bit, with two exceptions: a norm other than layer
norm and RMS norm is the model's own module, computed by torch; and a CPU without fused multiply-add uses torch's
products in float32.

Letters: R rows, I inputs, O outputs, D width, F inner width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sixfold.core import forms
from sixfold.core.parts import form_of
from sixfold.decoding.cpu import gemm, kernels
from sixfold.decoding.cpu.int8 import Matrix
from sixfold.decoding.cpu.llvm import ADD, RELU, SET
from sixfold.decoding.cpu.torch_private import int8_product

_FEW = 32  # rows up to which our gemm with one thread is faster than torch's with several
# A scratch buffer is replaced if it is _TOO_LARGE times too large and has more than _SMALL numbers.
_TOO_LARGE, _SMALL = 64, 1 << 18

_VECTOR = 32  # numbers per iteration of torch's elementwise loops; the remainder is rounded differently
_ONE_THREAD = 1 << 14  # numbers up to which torch computes a tensor in one thread


class Buffer(NamedTuple):
    """Rows, as an array and as a tensor that share memory."""

    array: np.ndarray
    tensor: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Buffer:
        tensor = tensor.detach().float().contiguous()
        return cls(tensor.numpy(), tensor)


class Scratch:
    """Buffers by name, and the maps that use them. They are reused, so that a step allocates nothing."""

    def __init__(self, precision: torch.dtype = torch.float32) -> None:
        self.rows = 0
        self.precision = precision  # the dtype in which the model's own modules are called
        self.maps: dict[nn.Module, LinearMap] = {}  # one for each part, even if several layers share it
        self._memory: dict[str, np.ndarray] = {}
        self._buffers: dict[tuple[str, int], Buffer] = {}

    def clear(self, rows: int) -> None:
        """From now on, `buffer` returns this many rows, and all buffers may be overwritten."""
        if rows != self.rows:
            self.rows = rows
            self._buffers.clear()

    def buffer(self, name: str, width: int, dtype: Any = np.float32) -> Buffer:
        """(R, width). The contents are those last written under this name, or arbitrary."""
        found = self._buffers.get((name, width))
        if found is None:
            size, memory = self.rows * width, self._memory.get(name)
            if memory is None or not size <= len(memory) <= max(_TOO_LARGE * size, _SMALL):
                memory = self._memory[name] = np.empty(size, dtype)
            array = memory[:size].reshape(self.rows, width)
            found = self._buffers[name, width] = Buffer(array, torch.from_numpy(array))
        return found


class LinearMap(Protocol):
    inputs: int
    outputs: int

    def __call__(self, x: Buffer, y: Buffer) -> None:
        """y ← W x + b"""

    def add(self, x: Buffer, total: Buffer) -> None:
        """total ← total + W x + b"""

    def relu(self, x: Buffer, y: Buffer) -> None:
        """y ← max(W x + b, 0)"""


def is_linear(part: nn.Module) -> bool:
    return isinstance(form_of(part), forms.LinearForm | forms.Int8LinearForm)


def is_table(part: nn.Module) -> bool:
    """Whether one matrix both embeds words and scores them."""
    form = form_of(part)
    return isinstance(form, forms.Int8EmbeddingForm) or (
        isinstance(form, forms.EmbeddingForm) and form.projection is None
    )


def map_of(part: nn.Module, scratch: Scratch) -> LinearMap:
    """The map of a linear layer, or of an embedding table used as the output layer."""
    if part not in scratch.maps:
        scratch.maps[part] = _make_map(part, scratch)
    return scratch.maps[part]


def _make_map(part: nn.Module, scratch: Scratch) -> LinearMap:
    match form_of(part):
        case forms.Int8LinearForm(matrix, bias):
            return _Int8(matrix, bias, scratch)
        case forms.Int8EmbeddingForm(_, matrix):
            return _Int8(matrix, None, scratch)
        case forms.LinearForm(weight, bias):
            return _Float32(weight, bias)
        case forms.EmbeddingForm(weight, None):
            return _Float32(weight, None)
    raise AssertionError(f"{type(part).__name__} is not a linear map")


class Weights:
    """Weights (O, I), in the memory layouts of the gemm."""

    def __init__(self, weight: Tensor):
        self._weight = weight.detach().float()

    @cached_property
    def transposed(self) -> Tensor:
        """(I, O): for torch's product."""
        return self._weight.t().contiguous()

    @cached_property
    def panels(self) -> np.ndarray | None:
        """For our own gemm; None if it does not support this CPU."""
        return gemm.panels(self._weight.numpy())


class _Linear:
    def __init__(self, outputs: int, bias: Tensor | None):
        self.outputs = outputs
        self.bias = np.zeros(outputs, np.float32) if bias is None else numbers(bias)
        self.padded_bias = gemm.padded(self.bias)

    def __call__(self, x: Buffer, y: Buffer) -> None:
        self._multiply(x, SET, y)

    def add(self, x: Buffer, total: Buffer) -> None:
        self._multiply(x, ADD, total)

    def relu(self, x: Buffer, y: Buffer) -> None:
        self._multiply(x, RELU, y)

    def _multiply(self, x: Buffer, mode: int, y: Buffer) -> None:
        raise NotImplementedError


class _Float32(_Linear):
    """Products by our own gemm, whose rows are independent; by torch's, if ours does not support this CPU."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__(len(weight), bias)
        self.inputs = weight.shape[1]
        self.weights, self.torch_bias = Weights(weight), torch.from_numpy(self.bias)

    def _multiply(self, x: Buffer, mode: int, y: Buffer) -> None:
        if (panels := self.weights.panels) is not None:
            if len(x.array) <= _FEW or (threads := torch.get_num_threads()) == 1:
                gemm.multiply_part(x.array, panels, 0, len(panels), self.padded_bias, mode, y.array)
            else:
                gemm.multiply(x.array, panels, self.padded_bias, mode, y.array, threads)
        elif mode == ADD:
            y.tensor.addmm_(x.tensor, self.weights.transposed).add_(self.torch_bias)
        else:
            torch.addmm(self.torch_bias, x.tensor, self.weights.transposed, out=y.tensor)
            if mode == RELU:
                y.tensor.relu_()


class _Int8(_Linear):
    """Products in int8, by our own gemm or torch's, whichever is faster: their results are equal to the last bit."""

    def __init__(self, matrix: Matrix, bias: Tensor | None, scratch: Scratch):
        self.matrix, self.scratch, self.inputs = matrix, scratch, len(matrix.int8)
        super().__init__(matrix.int8.shape[1], bias)
        self.scale = gemm.padded(matrix.scale.numpy())

    def _multiply(self, x: Buffer, mode: int, y: Buffer) -> None:
        few = len(x.array) <= _FEW or torch.get_num_threads() == 1
        if few and (panels := self.matrix.panels) is not None:
            gemm.multiply_int8(x.array, panels, self.scale, self.padded_bias, mode, y.array)
        else:
            kernels.rescale(*self._sums(x), self.scale, self.bias, mode, y.array)

    def _sums(self, x: Buffer) -> tuple[np.ndarray, np.ndarray]:
        """Exact sums (R, O), and the largest magnitude of each row of x."""
        int8 = self.scratch.buffer("int8", self.inputs, np.int8)
        sums, largest = self.scratch.buffer("sums", self.outputs, np.int32), self.scratch.buffer("largest", 1)
        kernels.quantise(x.array, int8.array, largest.array[:, 0])
        int8_product(int8.tensor, self.matrix.suited_to(len(x.array)), out=sums.tensor)
        return sums.array, largest.array[:, 0]


def numbers(parameter: Tensor) -> np.ndarray:
    """A parameter as a float32 array."""
    return parameter.detach().float().numpy()


Norm = Callable[[Buffer, Buffer], None]  # (x, y): y ← Norm(x)


def norm_of(norm: nn.Module, scratch: Scratch) -> Norm:
    form = form_of(norm)
    if isinstance(form, forms.NormForm):
        gain, channels, epsilon = numbers(form.weight), form.channels, form.epsilon
        if not form.centred and form.bias is None:
            return lambda x, y: kernels.rms_norm(x.array, gain, channels, epsilon, y.array)
        if form.centred and form.bias is not None and channels == len(gain):
            bias = numbers(form.bias)
            return lambda x, y: kernels.norm(x.array, gain, bias, epsilon, y.array)

    def own_module(x: Buffer, y: Buffer) -> None:
        y.tensor.copy_(norm(x.tensor.to(scratch.precision)))

    return own_module


class Residual:
    """x + Sublayer(Norm(x)), or Norm(x + Sublayer(x)): the norm before or after the sub-layer."""

    def __init__(self, residual: nn.Module, scratch: Scratch):
        form = form_of(residual)
        assert isinstance(form, forms.ResidualForm)
        self.norm, self.scratch, self.first = norm_of(form.norm, scratch), scratch, isinstance(form, forms.PreNormForm)

    @staticmethod
    def knows(residual: nn.Module) -> bool:
        form = form_of(residual)
        return isinstance(form, forms.PreNormForm | forms.PostNormForm) and form.gain is None

    def before(self, x: Buffer) -> Buffer:
        """The input of the sub-layer."""
        if not self.first:
            return x
        y = self.scratch.buffer("normed", x.array.shape[1])
        self.norm(x, y)
        return y

    def after(self, x: Buffer) -> None:
        """Called after the sub-layer's output was added to x."""
        if not self.first:
            self.norm(x, x)


class FusedFeedForward:
    """A feed-forward layer, plain or gated."""

    def __init__(self, layer: nn.Module, scratch: Scratch):
        form = form_of(layer)
        assert isinstance(form, forms.FeedForwardForm)
        self.inner, self.outer, self.scratch = map_of(form.inner, scratch), map_of(form.outer, scratch), scratch
        self.width = self.outer.inputs
        self.activate = _gated(form.activation) if form.gated else form.activation

    @staticmethod
    def knows(layer: nn.Module) -> bool:
        form = form_of(layer)
        return isinstance(form, forms.FeedForwardForm) and is_linear(form.inner) and is_linear(form.outer)

    def add(self, x: Buffer, total: Buffer) -> None:
        """total ← total + the layer's output"""
        y = self.scratch.buffer("inner", self.inner.outputs)
        if self.activate is torch.relu:
            self.inner.relu(x, y)
        else:
            self.inner(x, y)
            y = Buffer.of(row_by_row(self.activate, y.tensor.to(self.scratch.precision), self.width))
        self.outer.add(y, total)


def _gated(gate: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def activate(y: Tensor) -> Tensor:
        a, b = y.chunk(2, dim=-1)
        return gate(a) * b

    return activate


def row_by_row(function: Callable[[Tensor], Tensor], y: Tensor, width: int) -> Tensor:
    """function(y), computed so that no row changes the last bit of another. A row has one or more chunks of this width.

    torch's elementwise loops compute full vectors. The remainder of a tensor, or of a thread's share, is computed one
    number at a time, and rounded differently. If the width is a multiple of the vector length, a tensor
    computed by one thread has no remainder; otherwise each row is computed alone.
    """
    if width % _VECTOR:
        return torch.cat([function(row.clone()) for row in y.split(1)])  # cloned: every row has the same alignment
    rows = len(y) if torch.get_num_threads() == 1 else max(1, _ONE_THREAD // y.shape[1])
    return function(y) if len(y) <= rows else torch.cat([function(some) for some in y.split(rows)])
