"""What a layer does with each row by itself (linear maps, norms, feed-forward layers), on arrays that are used again.

Letters: R rows, I inputs, O outputs, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from sixfold.core import forms
from sixfold.core.parts import form_of
from sixfold.decoding.cpu import gemm, kernels
from sixfold.decoding.cpu.int8 import Matrix, sample
from sixfold.decoding.cpu.llvm import ADD, POSITIVE, SET

_FEW = 32  # rows, which our own product multiplies faster with one thread than torch's with several
_MUCH, _LITTLE = 64, 1 << 18  # times as large a paper as is needed is given up, if it is larger than this


class Sheet(NamedTuple):
    """Rows, as torch and as numpy see them."""

    array: np.ndarray
    tensor: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Sheet:
        tensor = tensor.detach().float().contiguous()
        return cls(tensor.numpy(), tensor)


class Desk:
    """Sheets that are written on again and again, so that nothing is allocated from one step to the next."""

    def __init__(self, precision: torch.dtype = torch.float32) -> None:
        self.rows, self.precision = 0, precision  # of parts that are called as they are
        self._paper: dict[str, np.ndarray] = {}
        self._sheets: dict[tuple[str, int], Sheet] = {}

    def clear(self, rows: int) -> None:
        """Whatever lies on it may be written over; sheets have so many rows from now on."""
        if rows != self.rows:
            self.rows = rows
            self._sheets.clear()

    def sheet(self, name: str, width: int, dtype: Any = np.float32) -> Sheet:
        """(R, width), with whatever was last written there under this name."""
        found = self._sheets.get((name, width))
        if found is None:
            size, paper = self.rows * width, self._paper.get(name)
            if paper is None or not size <= len(paper) <= max(_MUCH * size, _LITTLE):
                paper = self._paper[name] = np.empty(size, dtype)
            array = paper[:size].reshape(self.rows, width)
            found = self._sheets[name, width] = Sheet(array, torch.from_numpy(array))
        return found


class Map(Protocol):
    """A linear map."""

    outputs: int

    def __call__(self, x: Sheet, y: Sheet) -> None:
        """y ← W x + b"""

    def add(self, x: Sheet, total: Sheet) -> None:
        """total ← total + W x + b"""

    def positive(self, x: Sheet, y: Sheet) -> None:
        """y ← max(W x + b, 0)"""


def is_linear(part: nn.Module) -> bool:
    return isinstance(form_of(part), forms.LinearForm | forms.Int8LinearForm)


def is_table(part: nn.Module) -> bool:
    """Whether it looks words up in one table, and scores them by it."""
    form = form_of(part)
    return isinstance(form, forms.Int8EmbeddingForm) or (
        isinstance(form, forms.EmbeddingForm) and form.projection is None
    )


def map_of(part: nn.Module, desk: Desk) -> Map:
    """The map of a linear layer, or that of a table which scores words."""
    match form_of(part):
        case forms.Int8LinearForm(matrix, bias):
            return _Whole(matrix, bias, desk)
        case forms.Int8EmbeddingForm(_, matrix):
            return _Whole(matrix, None, desk)
        case forms.LinearForm(weight, bias):
            return _Float(weight, bias)
        case forms.EmbeddingForm(weight, None):
            return _Float(weight, None)
    raise AssertionError(f"{type(part).__name__} is no linear map")


class Weights:
    """Weights (O, I), lying in memory as they are multiplied the fastest."""

    def __init__(self, weight: Tensor):
        self._weight = weight.detach().float()

    @cached_property
    def turned(self) -> Tensor:
        """(I, O): for torch's product."""
        return self._weight.t().contiguous()

    @cached_property
    def panels(self) -> np.ndarray | None:
        """For our own, if this CPU knows it."""
        return gemm.panels(self._weight.numpy())


_laid_out: MutableMapping[Tensor, tuple[Hashable, Weights]] = WeakIdKeyDictionary()


def laid_out(weight: Tensor) -> Weights:
    """They are made once, and anew when changed."""
    now, made = sample(weight), _laid_out.get(weight)
    if made is None or made[0] != now:
        made = _laid_out[weight] = now, Weights(weight)
    return made[1]


class _Linear:
    """By our own product or torch's, whichever is faster."""

    def __init__(self, outputs: int, bias: Tensor | None):
        self.outputs = outputs
        self.bias = np.zeros(outputs, np.float32) if bias is None else numbers(bias)
        self.filled_bias = gemm.filled_up(self.bias)

    def __call__(self, x: Sheet, y: Sheet) -> None:
        self._multiply(x, SET, y)

    def add(self, x: Sheet, total: Sheet) -> None:
        self._multiply(x, ADD, total)

    def positive(self, x: Sheet, y: Sheet) -> None:
        self._multiply(x, POSITIVE, y)

    def _multiply(self, x: Sheet, how: int, y: Sheet) -> None:
        raise NotImplementedError


class _Float(_Linear):
    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__(len(weight), bias)
        self.weights, self.torch_bias = laid_out(weight), torch.from_numpy(self.bias)

    def _multiply(self, x: Sheet, how: int, y: Sheet) -> None:
        if _few(x) and (panels := self.weights.panels) is not None:
            gemm.multiply(x.array, panels, self.filled_bias, how, y.array)
        elif how == ADD:
            y.tensor.addmm_(x.tensor, self.weights.turned).add_(self.torch_bias)
        else:
            torch.addmm(self.torch_bias, x.tensor, self.weights.turned, out=y.tensor)
            if how == POSITIVE:
                y.tensor.relu_()


class _Whole(_Linear):
    """In whole numbers of 8 bits: see sixfold/int8.py. Both ways come to the same bits."""

    def __init__(self, matrix: Matrix, bias: Tensor | None, desk: Desk):
        self.matrix, self.desk, self.inputs = matrix, desk, len(matrix.whole)
        super().__init__(matrix.whole.shape[1], bias)
        self.scale = gemm.filled_up(matrix.scale.numpy())

    def _multiply(self, x: Sheet, how: int, y: Sheet) -> None:
        if _few(x) and (panels := self.matrix.panels) is not None:
            gemm.multiply_whole(x.array, panels, self.scale, self.filled_bias, how, y.array)
        else:
            kernels.rescale(*self._sums(x), self.scale, self.bias, how, y.array)

    def _sums(self, x: Sheet) -> tuple[np.ndarray, np.ndarray]:
        """Exact sums (R, O), and the largest number of each row of x."""
        whole, sums = self.desk.sheet("whole", self.inputs, np.int8), self.desk.sheet("sums", self.outputs, np.int32)
        largest = self.desk.sheet("largest", 1).array[:, 0]
        kernels.quantise(x.array, whole.array, largest)
        torch._int_mm(whole.tensor, self.matrix.suited_to(len(x.array)), out=sums.tensor)
        return sums.array, largest


def _few(x: Sheet) -> bool:
    """Whether there are so few rows, or threads, that our own product is faster than torch's: it has one thread."""
    return len(x.array) <= _FEW or torch.get_num_threads() == 1


def numbers(parameter: Tensor) -> np.ndarray:
    """In single precision."""
    return parameter.detach().float().numpy()


Norm = Callable[[Sheet, Sheet], None]  # (x, y): y ← Norm(x)


def norm_of(norm: nn.Module, desk: Desk) -> Norm:
    form = form_of(norm)
    if isinstance(form, forms.NormForm) and form.channels == len(form.weight):
        gain, epsilon = numbers(form.weight), form.epsilon
        if not form.centred and form.bias is None:
            return lambda x, y: kernels.rms_norm(x.array, gain, epsilon, y.array)
        if form.centred and form.bias is not None:
            bias = numbers(form.bias)
            return lambda x, y: kernels.norm(x.array, gain, bias, epsilon, y.array)

    def as_it_is(x: Sheet, y: Sheet) -> None:
        y.tensor.copy_(norm(x.tensor.to(desk.precision)))

    return as_it_is


class Around:
    """x + Sublayer(Norm(x)), or Norm(x + Sublayer(x)): what comes before and after the sub-layer."""

    def __init__(self, residual: nn.Module, desk: Desk):
        form = form_of(residual)
        assert isinstance(form, forms.ResidualForm)
        self.norm, self.desk, self.first = norm_of(form.norm, desk), desk, isinstance(form, forms.PreNormForm)

    @staticmethod
    def knows(residual: nn.Module) -> bool:
        form = form_of(residual)
        return isinstance(form, forms.PreNormForm | forms.PostNormForm) and form.gain is None

    def before(self, x: Sheet) -> Sheet:
        """What the sub-layer reads."""
        if not self.first:
            return x
        y = self.desk.sheet("normed", x.array.shape[1])
        self.norm(x, y)
        return y

    def after(self, x: Sheet) -> None:
        """When the sub-layer's output is added to x."""
        if not self.first:
            self.norm(x, x)


class Inner:
    """A feed-forward layer, plain or gated."""

    def __init__(self, layer: nn.Module, desk: Desk):
        form = form_of(layer)
        assert isinstance(form, forms.FeedForwardForm)
        self.inner, self.outer, self.desk = map_of(form.inner, desk), map_of(form.outer, desk), desk
        self.activate = _gated(form.activation) if form.gated else form.activation

    @staticmethod
    def knows(layer: nn.Module) -> bool:
        form = form_of(layer)
        return isinstance(form, forms.FeedForwardForm) and is_linear(form.inner) and is_linear(form.outer)

    def add(self, x: Sheet, total: Sheet) -> None:
        """total ← total + the layer's output"""
        y = self.desk.sheet("inner", self.inner.outputs)
        if self.activate is torch.relu:
            self.inner.positive(x, y)
        else:
            self.inner(x, y)
            y = Sheet.of(self.activate(y.tensor.to(self.desk.precision)))
        self.outer.add(y, total)


def _gated(gate: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def activate(y: Tensor) -> Tensor:
        a, b = y.chunk(2, dim=-1)
        return gate(a) * b

    return activate
