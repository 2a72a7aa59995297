"""Where data enter a model: values are checked, and a Call is drawn up.

Letters: B rows, L tokens of each that are new, M tokens of each so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sixfold.core.call import Call, Gates
from sixfold.core.ids import PAD
from sixfold.core.masks import LazySight, Sight
from sixfold.core.memory import Memory
from sixfold.core.names import did_you_mean
from sixfold.core.state import Cache
from sixfold.core.tap import Tap


def check_ids(ids: Any, words: int, what: str) -> None:
    """Raise a ValueError unless `ids` are (rows, length) whole numbers from 0 to words − 1."""
    if not isinstance(ids, Tensor):
        raise ValueError(f"{what} must be a tensor of ids, got {type(ids).__name__}")
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{what} must be whole numbers (torch.long), got {ids.dtype}")
    if ids.dim() != 2:
        raise ValueError(f"{what} must have shape (rows, length), got {tuple(ids.shape)}")
    if _tracing(ids):
        return
    if ids.numel() == 0:
        raise ValueError(f"{what} must not be empty, got shape {tuple(ids.shape)}")
    low, high = (int(v) for v in ids.aminmax())
    if low < 0 or high >= words:
        raise ValueError(f"{what} has {low if low < 0 else high}, outside the vocabulary of {words} (0 to {words - 1})")


def check_real(real: Any, ids: Tensor, what: str) -> None:
    """Raise a ValueError unless `real` is a mask for `ids`, or None."""
    if real is None:
        return
    if not isinstance(real, Tensor) or real.dtype != torch.bool:
        got = real.dtype if isinstance(real, Tensor) else type(real).__name__
        raise ValueError(f"the mask of {what} must be a boolean tensor (True: not padding), got {got}")
    if real.shape != ids.shape:
        raise ValueError(
            f"the mask of {what} must have the shape of its ids {tuple(ids.shape)}, got {tuple(real.shape)}"
        )


def check_targets(targets: Any, x: Tensor, words: int) -> None:
    """Raise a ValueError unless there is a target for each state (B, L, D)."""
    check_ids(targets, words, "the targets")
    if targets.shape != x.shape[:2]:
        raise ValueError(f"{tuple(x.shape[:2])} inputs need as many targets, got {tuple(targets.shape)}")


def check_classes(targets: Any, x: Tensor, classes: int) -> None:
    """Raise a ValueError unless there is a class for each row of states (S, n, D)."""
    if not isinstance(targets, Tensor) or targets.dim() != 1:
        raise ValueError(f"the targets must be one class for each row, got {_shape(targets)}")
    check_ids(targets[:, None], classes, "the classes")
    if targets.shape[0] != x.shape[0]:
        raise ValueError(f"{x.shape[0]} rows need as many classes, got {targets.shape[0]}")


def check_memory(memory: Any, layers: int, width: int | None) -> Memory:
    """Raise a ValueError unless there is a memory for each decoder layer, of this width if one is given."""
    if not isinstance(memory, Memory):
        raise ValueError(f"the memory must be what `encode` gives, got {type(memory).__name__}")
    if len(memory.states) != layers:
        raise ValueError(f"the memory is for {len(memory.states)} decoder layers, but the model has {layers} layers")
    if width is not None and memory.states[0].shape[-1] != width:
        raise ValueError(f"the memory has width {memory.states[0].shape[-1]}, but the model reads width {width}")
    if memory.real is not None and memory.real.shape != memory.states[0].shape[:2]:
        raise ValueError(
            f"the memory's mask has shape {tuple(memory.real.shape)}, its states {tuple(memory.states[0].shape[:2])}"
        )
    return memory


def check_features(features: Any, ids: Tensor, what: str) -> None:
    """Raise a ValueError unless each feature has a value for each id."""
    for name, feature in (features or {}).items():
        if not isinstance(feature, Tensor) or feature.shape[:2] != ids.shape:
            raise ValueError(
                f"the feature {name!r} of {what} must be a tensor that begins with their shape {tuple(ids.shape)}, "
                f"got {_shape(feature)}"
            )


def check_gates(gates: Mapping[str, Tensor] | None, heads: Mapping[str, int], rows: int) -> None:
    """Raise a ValueError unless each gate is (rows or 1, heads) for heads that are there."""
    for name, gate in (gates or {}).items():
        if name not in heads:
            raise ValueError(f"there are no heads {name!r} to gate{did_you_mean(name, heads)}")
        if not isinstance(gate, Tensor) or tuple(gate.shape) not in ((1, heads[name]), (rows, heads[name])):
            shape = f"({rows} or 1, {heads[name]})" if rows > 1 else f"(1, {heads[name]})"
            raise ValueError(f"the gate of {name!r} must have shape {shape}, got {_shape(gate)}")


def check_tap(tap: Any) -> None:
    if tap is not None and not isinstance(tap, Tap):
        raise ValueError(f"tap must be a sixfold.Tap, got {type(tap).__name__}")


def check_smoothing(smoothing: float) -> None:
    if not 0 <= smoothing < 1:
        raise ValueError(f"label smoothing must be at least 0 and less than 1, got {smoothing}")


def _shape(got: Any) -> str:
    return f"shape {tuple(got.shape)}" if isinstance(got, Tensor) else type(got).__name__


def begin(
    ids: Tensor, real: Tensor | None, *, causal: bool, cache: Cache | None = None, limit: int | None = None, **rest: Any
) -> Call:
    """The call for one pass over `ids`. By default, all ids but PAD are real."""
    if not _tracing(ids):
        real = ids != PAD if real is None else real
        real = None if bool(real.all()) else real
    elif not ids.is_meta:
        real = ids != PAD if real is None else real
    if cache is None:
        positions = keys = _count(ids, real)
        sight = LazySight(lambda: Sight.among(real, causal=causal))
    else:
        positions, keys, sight = _continued(ids, real, cache)
    if limit is not None and not torch.compiler.is_compiling():
        last = keys.shape[1] if ids.is_meta else int(keys.max()) + 1
        if last > limit:
            raise ValueError(f"{last} positions, but this model has learned only {limit}; shorten the text")
    if cache is not None:  # only now, so that an error above leaves the cache unchanged
        cache.begin(positions, real, keys.shape[1])
    if rest.get("gates") is not None:
        rest["gates"] = Gates(rest["gates"])
    return Call(
        positions=positions, key_positions=keys, lazy_sight=sight, causal=causal, real=real, cache=cache, **rest
    )


def finish(call: Call, length: int, stack: str) -> None:
    """After a pass: every gate had an effect, and the cache holds the new tokens."""
    if call.gates is not None:
        call.gates.check(stack)
    if call.cache is not None:
        call.cache.finish(length if call.real is None else call.real.sum(1))


def _count(ids: Tensor, real: Tensor | None) -> Tensor:
    """Positions 0, 1, 2, … of the real tokens; one row for all if padding is at the end only."""
    if real is None:
        return torch.arange(ids.shape[1], device=ids.device)[None]
    positions = (real.cumsum(1) - 1).clamp(min=0)
    at_the_end = not _tracing(ids) and bool((real[:, 1:] <= real[:, :-1]).all())
    return positions.amax(0, keepdim=True) if at_the_end else positions


def _continued(ids: Tensor, real: Tensor | None, cache: Cache) -> tuple[Tensor, Tensor, LazySight]:
    """The positions of the new tokens, those of all tokens, and the sight: all slots up to the token's own."""
    if ids.shape[0] != cache.lengths.shape[0]:
        raise ValueError(f"{ids.shape[0]} rows of ids, but the cache has {cache.lengths.shape[0]} hypotheses")
    shortest, longest = (int(v) for v in cache.lengths.aminmax())
    if real is None and shortest == longest:
        keys = torch.arange(longest + ids.shape[1], device=ids.device)[None]
        positions = keys[:, longest:]
        if longest == 0:
            return positions, keys, LazySight.of(Sight(causal=True))
        if ids.shape[1] == 1:
            return positions, keys, LazySight.of(Sight())
    else:
        ones = torch.ones_like(ids) if real is None else real
        positions = cache.lengths[:, None] + (ones.cumsum(1) - 1).clamp(min=0)
        keys = torch.arange(int((cache.lengths + ones.sum(1)).max()), device=ids.device)[None]
        positions = positions.clamp(max=max(keys.shape[1] - 1, 0))  # a row of padding has no new position
    return positions, keys, LazySight(lambda: Sight((keys[:, None, :] <= positions[:, :, None])[:, None]))


def _tracing(ids: Tensor) -> bool:
    """Whether there are no values to look at: on the meta device, in export, under compile."""
    return ids.is_meta or torch.compiler.is_compiling()
