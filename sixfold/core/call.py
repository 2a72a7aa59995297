"""What travels beside x through the layers: which tokens are real, where each stands, what it may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sixfold.core.masks import LazySight, Sight

if TYPE_CHECKING:
    from sixfold.core.memory import Memory
    from sixfold.core.place import Place
    from sixfold.core.state import Cache, States
    from sixfold.core.tap import Tap
    from sixfold.transformer import Position


@dataclass(frozen=True, kw_only=True)
class Call:
    """One pass through one stack. Frozen: a layer that changes something hands on a changed copy."""

    positions: Tensor  # (B or 1, L): where each query stands
    key_positions: Tensor  # (B or 1, M): where each key stands, those in the cache included
    lazy_sight: LazySight  # what self-attention may see; parts ask for `sight`
    causal: bool  # whether the future is hidden: for parts that are no attention
    real: Tensor | None = None  # (B, L): which tokens are not padding; None if all are
    position: Any = None  # what the stack's position part prepared for its layers
    positioner: Position | None = None  # that part, for a stack that goes on with another sequence
    depth: int = 0  # belongs to the call: a shared layer runs at many depths
    memory: Memory = None  # type: ignore[assignment]  # in a decoder that has an encoder
    features: Mapping[str, Tensor] | None = None  # (B, L) each: what tokens carry besides their ids
    cache: Cache | None = None
    tap: Tap | None = None
    gates: Gates | None = None
    losses: list[Tensor] | None = None  # a sink for auxiliary losses; no layer reads it
    recompute: bool = False  # recompute each layer in the backward pass instead of keeping its activations

    @property
    def sight(self) -> Sight:
        """What self-attention may see."""
        return self.lazy_sight()

    def name(self, place: Place) -> str:
        """The name of a part in this pass, such as "decoder.3.cross"."""
        return f"{place.stack}.{self.depth}.{place.name}"

    def over(self, x: Tensor, real: Tensor | None, positions: Tensor) -> Call:
        """The call for another sequence in this one's place: x (B, L, D), which of it is real, where each stands."""
        assert self.cache is None, "a cache holds a state for each token, so a sequence with one must keep its length"
        sight = LazySight(lambda: Sight.among(real, causal=self.causal))
        call = replace(self, positions=positions, key_positions=positions, real=real, lazy_sight=sight)
        return replace(call, position=None if self.positioner is None else self.positioner.prepare(x, call))

    # State between decoding steps. Rows are hypotheses (B); where a verb says (S, …), they are sentences.

    def grow(self, place: Place, *new: Tensor) -> tuple[Tensor, ...]:
        """States of the new tokens (B, …, L, ·) → those of all tokens so far (B, …, M, ·)."""
        return new if self.cache is None else self.cache.grow((self.depth, place.name), new)

    def keep(self, place: Place, make: Callable[..., States], *, of: tuple[str, ...] = ("states",)) -> States:
        """States (B, …, n, ·) that `make` computes from the memory, once per sentence where there is a cache.

        `make` takes the tensors (S, n, ·) of the memory that are named in `of`; "states" is this layer's.
        """
        made = self.keep_for_sentences(place, make, of=of)
        if self.cache is None or self.cache.width == 1:
            return made
        return tuple(state.repeat_interleave(self.cache.width, 0) for state in made)

    @property
    def memory_sight(self) -> Sight:
        """What the rows (B) may see of the memory: all but its padding."""
        real = self.memory.real
        if real is not None and self.cache is not None and self.cache.width > 1:
            real = real.repeat_interleave(self.cache.width, 0)
        return Sight.among(real, causal=False)

    def carry(
        self,
        place: Place,
        x: Tensor,
        first: Callable[[Memory | None], States],
        update: Callable[..., tuple[Tensor, States]],
    ) -> Tensor:
        """Carry a state of fixed size (B, …) along x (B, L, D): `update(*state)` → (output, the state after x).

        A row starts from `first(memory)`, (S or 1, …). A token that is not real must leave the state as it was.
        """
        if self.cache is None:
            begun = (state.expand(x.shape[0], *state.shape[1:]) for state in first(self.memory))
            return update(*begun)[0]
        key = (self.depth, place.name)
        output, after = update(*self.cache.carried(key, first))
        self.cache.carry(key, after)
        return output

    # The same for attention that folds the hypotheses of a sentence together (`look`, `look_at_memory`).

    def remember(self, place: Place, k: Tensor, v: Tensor, *, apart: bool) -> tuple[Tensor, Tensor, Sight]:
        """Heads of the new tokens (B, H, L, K) → those of all so far, and what is seen of them.

        They are (B, H, M, K) if hypotheses must stay apart, because a position compares tokens with each other; else
        those of a sentence's hypotheses together, (S, H, M, K).
        """
        if self.cache is None or apart:
            k, v = self.grow(place, k, v)
            return k, v, self.sight
        (k, v), seen = self.cache.share((self.depth, place.name), (k, v))
        return k, v, self.sight if seen is None else Sight(mask=seen)

    def keep_for_sentences(
        self, place: Place, make: Callable[..., States], *, of: tuple[str, ...] = ("states",)
    ) -> States:
        """As `keep`, with one row per sentence: (S, …, n, ·)."""
        tensors = tuple(self.memory.named(name, self.depth) for name in of)
        return make(*tensors) if self.cache is None else self.cache.keep((self.depth, place.name), tensors, make)

    # Looking inside.

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
        gate = None if self.gates is None else self.gates.ask(self.name(place))
        return heads if gate is None else heads * gate[:, :, None, None]


class Gates:
    """Factors on the outputs of heads, "decoder.3.cross" → (B or 1, H), and which of them parts have asked for."""

    def __init__(self, factors: Mapping[str, Tensor]):
        self.factors, self.asked = dict(factors), set[str]()

    def ask(self, name: str) -> Tensor | None:
        self.asked.add(name)
        return self.factors.get(name)

    def check(self, stack: str) -> None:
        """Raise a ValueError if a gate of this stack had no effect."""
        for name in self.factors:
            if name.startswith(f"{stack}.") and name not in self.asked:
                raise ValueError(
                    f"the gate of {name!r} had no effect: the part declares heads, but its forward never calls "
                    f"call.gate(self.place, heads)"
                )
