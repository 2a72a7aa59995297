"""What a layer does with each row by itself (linear maps, norms, feed-forward layers), on arrays that are used again.

Letters: R rows, I inputs, O outputs, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from sixfold import kernels
from sixfold.int8 import Int8Linear, Int8Table, Matrix, sample
from sixfold.modifications.gated import Gated
from sixfold.modifications.post_norm import PostNorm
from sixfold.modifications.rms_norm import RMSNorm
from sixfold.transformer import FeedForward, PreNorm, TokenEmbedding

_MUCH, _LITTLE = 64, 1 << 18  # times as large a paper as is needed is given up, if it is larger than this


class Sheet(NamedTuple):
    """Rows, as torch and as numpy see them."""

    array: np.ndarray
    tensor: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Sheet:
        tensor = tensor.detach().contiguous()
        return cls(tensor.numpy(), tensor)


class Desk:
    """Sheets that are written on again and again, so that nothing is allocated from one step to the next."""

    def __init__(self) -> None:
        self.rows = 0
        self.turn = 0  # how often that has changed
        self._paper: dict[str, np.ndarray] = {}
        self._sheets: dict[tuple[str, int], Sheet] = {}

    def clear(self, rows: int) -> None:
        """Whatever lies on it may be written over; sheets have so many rows from now on."""
        if rows != self.rows:
            self.rows, self.turn = rows, self.turn + 1
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


class OneThread:
    """While anybody is inside, products have one thread: of few rows, others would mostly wait, and take the core."""

    def __init__(self) -> None:
        self._lock, self._inside, self._threads = Lock(), 0, 1

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._threads = torch.get_num_threads()
                torch.set_num_threads(1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                torch.set_num_threads(self._threads)


one_thread = OneThread()


class Map(Protocol):
    """A linear map."""

    outputs: int

    def __call__(self, x: Sheet, y: Sheet) -> None:
        """y ← W x + b"""

    def add(self, x: Sheet, total: Sheet) -> None:
        """total ← total + W x + b"""

    def scores(self, x: Sheet, log_z: np.ndarray) -> Sheet:
        """W x, for as many outputs as there are words, and log Σ exp of each row (R,); they hold until they are asked
        for again."""


LINEAR = nn.Linear, Int8Linear  # and nobody else's


def map_of(linear: nn.Module, desk: Desk) -> Map:
    """The map of a linear layer, or that of a table which scores words."""
    if isinstance(linear, Int8Linear | Int8Table):
        sums = "scores" if isinstance(linear, Int8Table) else "sums"
        return _Whole(linear.matrix, getattr(linear, "bias", None), desk, sums)
    assert isinstance(linear, nn.Linear | TokenEmbedding)
    return _Float(linear.weight, getattr(linear, "bias", None), desk)


_turned: MutableMapping[Tensor, tuple[Hashable, Tensor]] = WeakIdKeyDictionary()


def turned(weight: Tensor) -> Tensor:
    """Weights (O, I) → (I, O) as one multiplies fewer rows the fastest. They are made once, and anew when changed."""
    now, made = sample(weight), _turned.get(weight)
    if made is None or made[0] != now:
        made = _turned[weight] = now, weight.detach().t().contiguous()
    return made[1]


class _Float:
    def __init__(self, weight: Tensor, bias: Tensor | None, desk: Desk):
        self.outputs, self.desk = len(weight), desk
        self.weight, self.bias = turned(weight), None if bias is None else bias.detach()

    def __call__(self, x: Sheet, y: Sheet) -> None:
        if self.bias is None:
            torch.mm(x.tensor, self.weight, out=y.tensor)
        else:
            torch.addmm(self.bias, x.tensor, self.weight, out=y.tensor)

    def add(self, x: Sheet, total: Sheet) -> None:
        total.tensor.addmm_(x.tensor, self.weight)
        if self.bias is not None:
            total.tensor.add_(self.bias)

    def scores(self, x: Sheet, log_z: np.ndarray) -> Sheet:
        y = self.desk.sheet("scores", self.outputs)
        torch.mm(x.tensor, self.weight, out=y.tensor)
        kernels.normalise(y.array, log_z)
        return y


class _Whole:
    """In whole numbers of 8 bits: see sixfold/int8.py."""

    def __init__(self, matrix: Matrix, bias: Tensor | None, desk: Desk, name: str):
        self.matrix, self.desk, self.name = matrix, desk, name
        self.inputs, self.outputs = matrix.whole.shape
        self.scale = matrix.scale.numpy()
        self.bias = np.zeros(self.outputs, np.float32) if bias is None else bias.detach().numpy()
        self._turn = 0

    def __call__(self, x: Sheet, y: Sheet) -> None:
        self._sum_up(x)
        kernels.rescale(self._sums.array, self._largest, self.scale, self.bias, y.array)

    def add(self, x: Sheet, total: Sheet) -> None:
        self._sum_up(x)
        kernels.add_rescaled(self._sums.array, self._largest, self.scale, self.bias, total.array)

    def scores(self, x: Sheet, log_z: np.ndarray) -> Sheet:
        self._sum_up(x)
        sums = self._sums
        y = Sheet(sums.array.view(np.float32), sums.tensor.view(torch.float32))
        kernels.rescale_scores(sums.array, self._largest, self.scale, y.array, log_z)
        return y

    def _sum_up(self, x: Sheet) -> None:
        """Exact sums (R, O), and the largest number of each row of x."""
        if self._turn != self.desk.turn:
            self._lay_out()
        kernels.quantise(x.array, self._whole.array, self._largest)
        torch._int_mm(self._whole.tensor, self._weight, out=self._sums.tensor)

    def _lay_out(self) -> None:
        """Choose sheets, and how the weights lie, for as many rows as there are from now on."""
        desk = self.desk
        self._turn, self._weight = desk.turn, self.matrix.suited_to(desk.rows)
        self._whole = desk.sheet("whole", self.inputs, np.int8)
        self._sums = desk.sheet(self.name, self.outputs, np.int32)
        self._largest = desk.sheet("largest", 1).array[:, 0]


Norm = Callable[[Sheet, Sheet], None]  # (x, y): y ← Norm(x)


def norm_of(norm: nn.Module) -> Norm:
    if type(norm) is nn.LayerNorm and norm.bias is not None:
        weight, bias, epsilon = norm.weight.detach().numpy(), norm.bias.detach().numpy(), norm.eps
        return lambda x, y: kernels.norm(x.array, weight, bias, epsilon, y.array)
    if type(norm) is RMSNorm and norm.channels == len(norm.weight):
        root = norm.weight.detach().numpy()
        return lambda x, y: kernels.rms_norm(x.array, root, 1e-6, y.array)

    def as_it_is(x: Sheet, y: Sheet) -> None:
        y.tensor.copy_(norm(x.tensor))

    return as_it_is


class Around:
    """x + Sublayer(Norm(x)), or Norm(x + Sublayer(x)): what comes before and after the sub-layer."""

    def __init__(self, residual: Any, desk: Desk):
        assert type(residual) in (PreNorm, PostNorm)
        self.norm, self.desk, self.first = norm_of(residual.norm), desk, type(residual) is PreNorm

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
        assert isinstance(layer, FeedForward | Gated)
        self.inner, self.outer, self.desk = map_of(layer.inner, desk), map_of(layer.outer, desk), desk
        self.activate = _gated(layer.gate) if isinstance(layer, Gated) else _in_place(layer.activation)

    @staticmethod
    def knows(layer: nn.Module) -> bool:
        return type(layer) in (FeedForward, Gated) and type(layer.inner) in LINEAR and type(layer.outer) in LINEAR

    def add(self, x: Sheet, total: Sheet) -> None:
        """total ← total + the layer's output"""
        y = self.desk.sheet("inner", self.inner.outputs)
        self.inner(x, y)
        self.outer.add(self.activate(y), total)


def _in_place(activation: Callable[[Tensor], Tensor]) -> Callable[[Sheet], Sheet]:
    if activation is not torch.relu:
        return lambda y: Sheet.of(activation(y.tensor))

    def relu(y: Sheet) -> Sheet:
        y.tensor.relu_()
        return y

    return relu


def _gated(gate: Callable[[Tensor], Tensor]) -> Callable[[Sheet], Sheet]:
    def activate(y: Sheet) -> Sheet:
        a, b = y.tensor.chunk(2, dim=-1)
        return Sheet.of(gate(a) * b)

    return activate
