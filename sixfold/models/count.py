"""Counts a model's parameters and the multiply-accumulates of a forward pass, on the meta device, without memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from sixfold.models.decoder_only import DecoderOnly
from sixfold.models.encoder_decoder import EncoderDecoder
from sixfold.models.encoder_only import EncoderOnly
from sixfold.models.model import Model


@dataclass(frozen=True)
class Count:
    """Totals, and the same by part, such as "encoder.attention"."""

    parameters: int
    parameters_by_part: dict[str, int]
    operations: int  # multiply-accumulates of matrix products, as executed for one sequence (pair)
    operations_by_part: dict[str, int]


def count(model: Model, source_length: int, target_length: int) -> Count:
    """Count a model that was built on the meta device."""
    parameters = Counter[str]()
    for name, parameter in model.named_parameters():
        parameters[part_of(name)] += parameter.numel()
    operations = _operations(model, source_length, target_length)
    return Count(parameters.total(), dict(parameters), operations.total(), dict(operations))


def part_of(name: str) -> str:
    """encoder.layers.3.attention.qkv.weight → encoder.attention: the stack, and the part within its layer."""
    words = [word for word in name.split(".") if not word.isdigit() and word not in ("layers", "layer")]
    words[0] = {"tables": "embedding", "stack": "only", "input": "only"}.get(words[0], words[0].removesuffix("_input"))
    if "position" in words:
        return f"{words[0]}.position"
    if words[0] in ("embedding", "head", "classifier", "bridge") or len(words) == 1:
        return words[0]
    return f"{words[0]}.{'residual' if words[1].startswith('around_') else words[1]}"


def _operations(model: Model, source_length: int, target_length: int) -> Counter[str]:
    """Multiply-accumulates by part. Those outside of any part are the product with the output table: "head"."""
    source, target = (torch.zeros(1, n, dtype=torch.long, device="meta") for n in (source_length, target_length))
    flops = _Flops()
    ledger = _Ledger(model, flops)
    with torch.no_grad(), flops:
        _forward(model.eval(), source, target)
    ledger.close()
    operations = Counter[str]()
    for name, own in ledger.own.items():
        if own:
            operations[part_of(name) if name else "head"] += own // 2  # one multiply-accumulate is two flops
    return operations


def _forward(model: Model, source: Tensor, target: Tensor) -> Tensor:
    if isinstance(model, EncoderDecoder):
        return model.log_probs(model.decode(target, model.encode(source)))
    if isinstance(model, DecoderOnly):
        return model.log_probs(model.decode(target))
    assert isinstance(model, EncoderOnly)
    return model.classify(source) if model.sizes.classes else model.log_probs(model.encode(source))


_aten = torch.ops.aten
_NORMS = (_aten.native_layer_norm.default,)
_KEEP_SHAPE = (
    *(_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor),
    *(_aten.relu.default, _aten.gelu.default, _aten.sigmoid.default, _aten.silu.default, _aten.tanh.default),
    *(_aten._softmax.default, _aten._log_softmax.default, _aten._safe_softmax.default, _aten.masked_fill.Scalar),
)


class _Flops(TorchDispatchMode):
    """Adds up the floating-point operations of matrix products, by torch's own formulas.

    Elementwise operations are skipped and return an empty tensor of the right shape: torch's meta device runs them in
    Python, which would take most of the time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in _NORMS:
            x = args[0]
            return torch.empty_like(x), x.new_empty(*x.shape[:-1], 1), x.new_empty(*x.shape[:-1], 1)
        if function in _KEEP_SHAPE and _fits(*args[:2]):
            return torch.empty_like(args[0])
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        formula = flop_registry.get(function.overloadpacket)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=result)
        return result


def _fits(first: Any, second: Any = None) -> bool:
    """Whether the second argument changes neither the shape nor the dtype of the first."""
    if not isinstance(first, Tensor) or not first.is_floating_point():
        return False
    if not isinstance(second, Tensor):
        return True
    widened = second.dim() <= first.dim() and torch.broadcast_shapes(first.shape, second.shape) == first.shape
    return widened and second.dtype in (first.dtype, torch.bool)


class _Ledger:
    """Charges each operation to the innermost module that is running, or to "" outside of all modules.

    Module names are not enough: a residual connection runs a sub-layer that is its sibling, not its child.
    """

    def __init__(self, model: nn.Module, flops: _Flops):
        self.own, self.flops = Counter[str](), flops
        self._running, self._charged = [""], 0
        self._hooks = []
        for name, module in model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(lambda *_, name=name: self._enter(name)))
            self._hooks.append(module.register_forward_hook(lambda *_: self._leave()))

    def _charge(self) -> None:
        total = self.flops.total
        self.own[self._running[-1]] += total - self._charged
        self._charged = total

    def _enter(self, name: str) -> None:
        self._charge()
        self._running.append(name)

    def _leave(self) -> None:
        self._charge()
        self._running.pop()

    def close(self) -> None:
        self._charge()
        for hook in self._hooks:
            hook.remove()
