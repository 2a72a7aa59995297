"""How weights start: so that each map keeps a unit variance, and the first loss is near ln V.

Near means a few percent at usual sizes. In a shallow and wide model with a shared table it is more: the word that
was just read shows through the few layers, and its own row of the table answers with a large logit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class SkipInitOnMeta(TorchFunctionMode):
    """Weights on the meta device hold no numbers, and get none.

    To draw them there, torch would import its compiler first, which takes a second.
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


def normal(linear: nn.Linear) -> nn.Linear:
    """N(0, 1/n_in): keeps a unit variance; for the matrices of attention."""
    nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
    return _zero_bias(linear)


def truncated(linear: nn.Linear) -> nn.Linear:
    """The same, cut at two standard deviations; for feed-forward layers."""
    std = linear.in_features**-0.5
    nn.init.trunc_normal_(linear.weight, std=std, a=-2 * std, b=2 * std)
    return _zero_bias(linear)


def _zero_bias(linear: nn.Linear) -> nn.Linear:
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear
