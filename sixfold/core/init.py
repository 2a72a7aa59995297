"""How weights start: a part declares a distribution for each, and the model draws all of them by name.

    self.table = parameter((length, width), Normal(0.02))         # a parameter of one's own
    self.output = linear(inner, width, bias=False)                # a matrix of N(0, 1/n_in)
    self.query = truncated(nn.Linear(width, width))               # a matrix that torch made
    declare(self.query.weight, Uniform(0.1))                      # the last declaration counts

In a model that `build` makes, a parameter's numbers come from a generator seeded by the model's seed and the
parameter's name. So two variants with one seed are equal wherever they have a parameter in common. A part that is made
by itself, outside `build`, draws at once, from torch's own generator.

Each map keeps a unit variance, and the first loss is near ln V. Near means a few percent at usual sizes. In a shallow
and wide model with a shared table it is more: the word that was just read shows through the few layers, and its own
row of the table answers with a large logit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sixfold.core.drawing import Distribution, current, fill

# Distributions ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Normal:
    """N(0, std²)"""

    std: float

    def __call__(self, tensor: Tensor, *, generator: torch.Generator | None = None) -> None:
        nn.init.normal_(tensor, std=self.std, generator=generator)


@dataclass(frozen=True)
class Truncated:
    """N(0, std²), cut at two standard deviations."""

    std: float

    def __call__(self, tensor: Tensor, *, generator: torch.Generator | None = None) -> None:
        """Redraw the values outside the bound; torch's own function redraws the whole tensor each time."""
        with torch.no_grad():
            bound = tensor.new_tensor(2 * self.std, device="cpu").item()  # rounded to the tensor's dtype
            numbers = tensor.normal_(std=self.std, generator=generator).view(-1)
            (outside,) = (numbers.abs() > bound).nonzero(as_tuple=True)
            while len(outside):
                again = numbers.new_empty(len(outside)).normal_(std=self.std, generator=generator)
                numbers.scatter_(0, outside, again)
                outside = outside[again.abs() > bound]


@dataclass(frozen=True)
class Uniform:
    """From −bound to bound."""

    bound: float

    def __call__(self, tensor: Tensor, *, generator: torch.Generator | None = None) -> None:
        nn.init.uniform_(tensor, -self.bound, self.bound, generator=generator)


@dataclass(frozen=True)
class Glorot:
    """Uniform with the variance 2/(n_in + n_out), by the tensor's shape."""

    def __call__(self, tensor: Tensor, *, generator: torch.Generator | None = None) -> None:
        nn.init.xavier_uniform_(tensor, generator=generator)


# Declaring ----------------------------------------------------------------------------------------------


def declare(weight: Tensor, start: Distribution) -> None:
    """Declare the initial distribution of a parameter. The last declaration counts."""
    if weight.is_meta:
        return  # it holds no numbers
    if (by_name := current()) is None:
        fill(weight, start, None)
    else:
        by_name.declare(weight, start)


def parameter(shape: Iterable[int], start: Distribution) -> nn.Parameter:
    """A parameter of this shape with this initial distribution."""
    weight = nn.Parameter(torch.empty(*shape))
    declare(weight, start)
    return weight


def normal(matrix: nn.Linear) -> nn.Linear:
    """N(0, 1/n_in): keeps a unit variance; for the matrices of attention. The bias starts at 0."""
    declare(matrix.weight, Normal(matrix.in_features**-0.5))
    return _zero_bias(matrix)


def truncated(matrix: nn.Linear) -> nn.Linear:
    """The same, cut at two standard deviations; for feed-forward layers."""
    declare(matrix.weight, Truncated(matrix.in_features**-0.5))
    return _zero_bias(matrix)


class _Undrawn(nn.Linear):
    def reset_parameters(self) -> None:
        """nn.Linear's constructor draws its weights here; this one does not."""


def linear(
    inputs: int, outputs: int, start: Callable[[nn.Linear], nn.Linear] = normal, *, bias: bool = True
) -> nn.Linear:
    """An nn.Linear whose weights are only declared; torch's own draw is skipped."""
    matrix: nn.Linear = _Undrawn(inputs, outputs, bias=bias)
    matrix.__class__ = nn.Linear  # exports and the fast CPU step recognise the exact type
    return start(matrix)


def _zero_bias(matrix: nn.Linear) -> nn.Linear:
    if matrix.bias is not None:
        nn.init.zeros_(matrix.bias)
    return matrix


class SkipInitOnMeta(TorchFunctionMode):
    """Skip torch.nn.init for weights on the meta device.

    They hold no values, and torch would import its compiler for the call, which takes a second.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            tensor: Tensor = kwargs["tensor"] if "tensor" in kwargs else args[0]
            if tensor.is_meta:
                return tensor
        return function(*args, **kwargs)
