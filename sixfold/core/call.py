"""What travels beside x through the layers: who is real, where each token stands, what it may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from sixfold.core.masks import Sight
    from sixfold.core.memory import Memory
    from sixfold.core.place import Place
    from sixfold.core.state import Cache
    from sixfold.core.tap import Tap
    from sixfold.transformer import Position


@dataclass(frozen=True, kw_only=True)
class Call:
    """One pass through one stack. Frozen: a layer that changes something hands on a changed copy."""

    positions: Tensor  # (B or 1, L): where each query stands
    key_positions: Tensor  # (B or 1, M): where each key stands, those in the cache included
    sight: Sight  # what self-attention may see
    causal: bool  # whether the future is hidden: for parts that are no attention
    real: Tensor | None = None  # (B, L): which tokens are not padding; None if all are
    position: Any = None  # what the stack's position part prepared for its layers
    positioner: Position | None = None  # that part, for a stack that goes on with another sequence
    depth: int = 0  # belongs to the call: a shared layer runs at many depths
    memory: Memory = None  # type: ignore[assignment]  # in a decoder that has an encoder
    features: Mapping[str, Tensor] | None = None  # (B, L) each: what tokens carry besides their ids
    cache: Cache | None = None
    tap: Tap | None = None
    gates: Mapping[str, Tensor] | None = None  # "decoder.3.cross" → (B or 1, H): factors on the heads' outputs
    losses: list[Tensor] | None = None  # a sink for auxiliary losses; no layer reads it
    recompute: bool = False  # recompute each layer in the backward pass instead of keeping its activations

    def name(self, place: Place) -> str:
        """The name of a part in this pass, such as "decoder.3.cross"."""
        return f"{place.stack}.{self.depth}.{place.name}"

    def over(self, x: Tensor, real: Tensor | None, positions: Tensor) -> Call:
        """The call for another sequence in this one's place: x (B, L, D), who of it is real, where each stands."""
        assert self.cache is None, "a cache holds a state for each token, so a sequence with one must keep its length"
        sight = self.sight.among(real, causal=self.causal)
        call = replace(self, positions=positions, key_positions=positions, real=real, sight=sight)
        return replace(call, position=None if self.positioner is None else self.positioner.prepare(x, call))

    def grow(self, place: Place, *new: Tensor) -> tuple[Tensor, ...]:
        """States of the new tokens (B, …, L, ·) → those of all tokens so far (B, …, M, ·)."""
        return new if self.cache is None else self.cache.grow((self.depth, place.name), new)

    def remember(self, place: Place, k: Tensor, v: Tensor, position: Position) -> tuple[Tensor, Tensor, Sight]:
        """Heads of the new tokens (B, H, L, K) → those of all so far, and what is seen of them.

        They are those of a hypothesis, (B, H, M, K), if a position compares tokens with each other; else those of a
        sentence's hypotheses together, (S, H, M, K).
        """
        if self.cache is None or position.fills("bias") or position.fills("values"):
            k, v = self.grow(place, k, v)
            return k, v, self.sight
        (k, v), seen = self.cache.share((self.depth, place.name), (k, v))
        return k, v, self.sight if seen is None else self.sight._replace(mask=seen, causal=False)

    def keep(self, place: Place, make: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """States made of this layer's memory (S, n, D), once per sentence where there is a cache."""
        memory_SnD = self.memory.states[self.depth]
        return make(memory_SnD) if self.cache is None else self.cache.keep((self.depth, place.name), memory_SnD, make)

    def watched(self, place: Place) -> bool:
        return self.tap is not None and self.tap.wants(self.name(place))

    def show(self, place: Place, **fields: Tensor | None) -> None:
        """Hand to an open tap what it wants to see of this part."""
        if self.tap is None:
            return
        for field, tensor in fields.items():
            if field == "weights" and self.cache is not None and tensor is not None:
                tensor = self.cache.of_own_past((self.depth, place.name), tensor)
            if tensor is not None:
                self.tap(self.name(place), field, tensor)

    def gate(self, place: Place, heads: Tensor) -> Tensor:
        """Scale (or switch off) heads' outputs (B, H, L, K)."""
        gate = None if self.gates is None else self.gates.get(self.name(place))
        return heads if gate is None else heads * gate[:, :, None, None]
