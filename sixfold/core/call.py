"""`Call`: the record that travels beside x through the layers, with padding, positions, sight, memory and cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sixfold.core.masks import LazySight, Sight
from sixfold.core.state import spread

if TYPE_CHECKING:
    from sixfold.core.memory import Memory
    from sixfold.core.place import Place
    from sixfold.core.state import Cache, States
    from sixfold.core.tap import Tap
    from sixfold.transformer import Position


@dataclass(frozen=True, kw_only=True)
class Call:
    """One pass through one stack. Frozen: a layer that changes something hands on a changed copy."""

    positions: Tensor  # (B or 1, L): the position of each query
    key_positions: Tensor  # (B or 1, M): the position of each key, including the keys in the cache
    lazy_sight: LazySight  # makes `sight`, which parts should read, when it is first needed
    causal: bool  # whether later tokens are hidden; attention reads this from `sight`, other parts from here
    real: Tensor | None = None  # (B, L): True for tokens, False for padding; None if there is no padding
    position: Any = None  # the result of `prepare` of the stack's position part, the same for all layers
    positioner: Position | None = None  # the stack's position part, for a stack that changes the length of x
    depth: int = 0  # layers of this stack that x has passed; a shared layer runs at several depths
    memory: Memory = None  # type: ignore[assignment]  # the encoder's output, in a decoder that reads one
    features: Mapping[str, Tensor] | None = None  # (B, L) each: attributes of tokens besides their ids
    cache: Cache | None = None
    tap: Tap | None = None
    gates: Gates | None = None
    losses: list[Tensor] | None = None  # a sink for auxiliary losses; no layer reads it
    measures: dict[str, Tensor] | None = None  # a sink for sums that parts measure
    recompute: bool = False  # recompute each layer in the backward pass instead of keeping its activations

    @property
    def sight(self) -> Sight:
        """The sight of self-attention: the keys that each query may see."""
        return self.lazy_sight()

    def name(self, place: Place) -> str:
        """The name of a part in this pass, such as "decoder.3.cross"."""
        return f"{place.stack}.{self.depth}.{place.name}"

    def for_sequence(self, x: Tensor, real: Tensor | None, positions: Tensor) -> Call:
        """The call for the layers that follow when a stack replaces its sequence by x, as pooling does.

        x is (B, L, D); `real` and `positions` are those of the new sequence.
        """
        assert self.cache is None, "a cache has one slot per token, so with a cache a sequence must keep its length"
        sight = LazySight(lambda: Sight.among(real, causal=self.causal))
        call = replace(self, positions=positions, key_positions=positions, real=real, lazy_sight=sight)
        return replace(call, position=None if self.positioner is None else self.positioner.prepare(x, call))

    # State between decoding steps. A tensor (B, …) has one row per hypothesis, a tensor (S, …) one row per sentence.

    def grow(self, place: Place, *new: Tensor) -> tuple[Tensor, ...]:
        """States of the new tokens (B, …, L, ·) → those of all tokens so far (B, …, M, ·)."""
        return new if self.cache is None else self.cache.grow((self.depth, place.name), new)

    def keep(self, place: Place, make: Callable[..., States], *, of: tuple[str, ...] = ("states",)) -> States:
        """States (B, …, n, ·) that `make` computes from the memory. With a cache, it does so once per sentence.

        `make` takes the tensors (S, n, ·) of the memory that are named in `of`; "states" is the one for this layer.
        """
        made = self.keep_for_sentences(place, make, of=of)
        if self.cache is None or self.cache.width == 1:
            return made
        return tuple(state.repeat_interleave(self.cache.width, 0) for state in made)

    @property
    def memory_sight(self) -> Sight:
        """The sight of cross-attention: all of the memory except padding, for each row (B)."""
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

        The state of a new row is `first(memory)`, of shape (S or 1, …). `update` must leave the state unchanged at
        padding.
        """
        if self.cache is None:
            begun = (spread(state, x.shape[0]) for state in first(self.memory))
            return update(*begun)[0]
        key = (self.depth, place.name)
        output, after = update(*self.cache.carried(key, first))
        self.cache.carry(key, after)
        return output

    # `grow` and `keep` for attention that handles all hypotheses of a sentence in one row, as `look` and
    # `look_at_memory` do.

    def remember(self, place: Place, k: Tensor, v: Tensor, *, apart: bool) -> tuple[Tensor, Tensor, Sight]:
        """Keys and values of the new tokens (B, H, L, K) → keys and values of all tokens so far, and the sight on them.

        With `apart`, each hypothesis has its own row, (B, H, M, K). A position that acts on the scores needs that.
        Otherwise each sentence has one row, (S, H, M, K), with the tokens of all its hypotheses; the sight hides from
        each hypothesis the tokens of the others.
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

    def measure(self, place: Place, what: str, sums: Callable[[], Tensor]) -> None:
        """Report sums over the batch, such as the tokens of each expert (E,), if they are wanted: as in training."""
        if self.measures is not None:
            self.measures[f"{self.name(place)}.{what}"] = sums().detach()

    def watched(self, place: Place) -> bool:
        return self.tap is not None and self.tap.wants(self.name(place))

    def show(self, place: Place, **fields: Tensor | None) -> None:
        """Show tensors of this part to the tap, if there is one."""
        if self.tap is None:
            return
        for field, tensor in fields.items():
            if field == "weights" and self.cache is not None and tensor is not None:
                # With `remember`, the weights also have columns for the tokens of the sentence's other hypotheses.
                tensor = self.cache.of_own_past((self.depth, place.name), tensor)
            if tensor is not None:
                self.tap(self.name(place), field, tensor)

    def gate(self, place: Place, heads: Tensor) -> Tensor:
        """Scale (or switch off) heads' outputs (B, H, L, K)."""
        gate = None if self.gates is None else self.gates.ask(self.name(place))
        return heads if gate is None else heads * gate[:, :, None, None]


class Gates:
    """Factors on the outputs of heads: "decoder.3.cross" → (B or 1, H). It records the names that parts ask for."""

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
