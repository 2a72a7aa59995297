"""A decoder whose cache is plain tensors, in and out, so that an exported program can hold it.

    source   ids (B, n)  →  mask (B, n), kept: keys and values that cross-attentions make of the memory, once
    step     ids (B, L), mask, kept, past (B, …, T, ·)  →  log p (B, V) of the next word, past (B, …, T + L, ·)

All rows of a batch have read the same number T of tokens; at first T = 0. The past is the tokens themselves, the states
that grow with them, and carried states (B, …) of fixed size, which are zero at first. A decoder alone has no source:
its first step reads the prompt.

Letters: B rows, L new tokens, T tokens before them, n source length, D model width, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from sixfold.core.call import Call
from sixfold.core.ids import BOS
from sixfold.core.masks import LazySight, Sight
from sixfold.core.memory import Memory, with_mask
from sixfold.models.model import Model

Key = tuple[int, str]  # depth, and the name of a part within its layer
TOKENS: Key = (0, "tokens")  # the ids that were read, (B, T, 1): their number is the length of the past
States = Mapping[Key, tuple[Tensor, ...]]


@dataclass
class ExplicitCache:
    """Replaces a cache: it reads states from `past` and `kept`, and stores new ones in `grown` and `made`.

    Each row is a sentence with one hypothesis.
    """

    past: States = field(default_factory=dict)
    kept: States = field(default_factory=dict)
    memory: Memory | None = None
    begun: dict[Key, tuple[Tensor, ...]] = field(default_factory=dict)  # carried states before the first token
    grown: dict[Key, tuple[Tensor, ...]] = field(default_factory=dict)
    carries: dict[Key, tuple[Tensor, ...]] = field(default_factory=dict)
    made: dict[Key, tuple[Tensor, ...]] = field(default_factory=dict)
    width: int = 1

    def grow(self, key: Key, new: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        old = self.past.get(key)
        states = new if old is None else tuple(torch.cat(both, dim=-2) for both in zip(old, new, strict=True))
        self.grown[key] = states
        return states

    def share(self, key: Key, new: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], None]:
        return self.grow(key, new), None

    def keep(self, key: Key, memory: tuple[Tensor, ...], make: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        if key not in self.kept:
            self.made[key] = make(*memory)
            return self.made[key]
        return self.kept[key]

    def carried(self, key: Key, first: Callable[[Memory | None], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        if key in self.past:
            return self.past[key]
        rows, self.begun[key] = self.grown[TOKENS][0].shape[0], first(self.memory)
        return tuple(state.expand(rows, *state.shape[1:]) for state in self.begun[key])

    def carry(self, key: Key, state: tuple[Tensor, ...]) -> None:
        self.carries[key] = state


class Layout(NamedTuple):
    """The states of a model, in the order in which programs take and return them: (key, number of tensors)."""

    kept: tuple[tuple[Key, int], ...]
    grown: tuple[tuple[Key, int], ...]
    carried: tuple[tuple[Key, int], ...]
    named: tuple[str, ...]  # the tensors of the memory besides its states

    @property
    def past(self) -> tuple[tuple[Key, int], ...]:
        return self.grown + self.carried

    @classmethod
    def of(cls, model: Model) -> Layout:
        """Found by running one step; a ValueError if a carried state does not start at zero."""
        device, reader = next(model.parameters()).device, cast(Any, model)
        memory = reader.encode(torch.full((2, 3), BOS, device=device)) if model.reads_source else None
        _, cache = read(model, torch.full((2, 1), BOS, device=device), memory)
        for (_, name), states in cache.begun.items():
            if any(bool(state.any()) for state in states):
                raise ValueError(f"the state that {name!r} carries does not start at zero, as a program's must")
        kinds = (cache.made, cache.grown, cache.carries)
        kept, grown, carried = (tuple((key, len(states)) for key, states in each.items()) for each in kinds)
        return cls(kept, grown, carried, () if memory is None else (*memory.tokens, *memory.sentences))

    def past_of(self, cache: ExplicitCache) -> list[Tensor]:
        """The states that the next step reads, in order."""
        states = {**cache.grown, **cache.carries}
        return [state for key, _ in self.past for state in states[key]]


def read(
    model: Any, ids: Tensor, memory: Memory | None, past: States | None = None, kept: States | None = None
) -> tuple[Tensor, ExplicitCache]:
    """Read ids (B, L) after the past. → states (B, L, D), and the cache with the new states"""
    before = past[TOKENS][0].shape[-2] if past else 0
    keys = torch.arange(before + ids.shape[1], device=ids.device)[None]
    positions = keys[:, before:]
    sight = LazySight.of(Sight((keys[:, None, :] <= positions[:, :, None])[:, None]))
    cache = ExplicitCache(past or {}, kept or {}, memory)
    cache.grow(TOKENS, (ids[..., None].float(),))
    call = Call(
        positions=positions,
        key_positions=keys,
        lazy_sight=sight,
        causal=True,
        memory=memory,  # type: ignore[arg-type]
        cache=cache,  # type: ignore[arg-type]
    )
    entrance, stack = (model.input, model.stack) if not model.reads_source else (model.decoder_input, model.decoder)
    x, entered = entrance(ids, model.roles["target"], call)
    states, _ = stack(x, entered)
    return states[-1], cache


class SourceProgram(nn.Module):
    """Reads the source. → its mask, and the kept states"""

    def __init__(self, model: Any, layout: Layout):
        super().__init__()
        self.model, self.layout = model, layout

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        memory = with_mask(self.model.encode(source))
        _, cache = read(self.model, torch.full_like(source[:, :1], BOS), memory)
        assert memory.real is not None
        return memory.real, *(state for key, _ in self.layout.kept for state in cache.made[key])


class StepProgram(nn.Module):
    """Reads the newest tokens. → log p of the next word, and the new past"""

    def __init__(self, model: Any, layout: Layout):
        super().__init__()
        self.model, self.layout = model, layout

    def forward(self, ids: Tensor, real: Tensor | None, kept: list[Tensor], past: list[Tensor]) -> tuple[Tensor, ...]:
        memory = None
        if real is not None:  # the memory's tensors are no longer read: `kept` holds what was made of them
            unread = dict.fromkeys(self.layout.named, kept[0])
            memory = Memory((kept[0],) * self.model.sizes.decoder_layers, real, unread)
        x, cache = read(self.model, ids, memory, _by_key(self.layout.past, past), _by_key(self.layout.kept, kept))
        return self.model.log_probs(x[:, -1]), *self.layout.past_of(cache)


def _by_key(layout: Sequence[tuple[Key, int]], tensors: Sequence[Tensor]) -> dict[Key, tuple[Tensor, ...]]:
    tensors = iter(tensors)  # type: ignore[assignment]
    return {key: tuple(next(tensors) for _ in range(number)) for key, number in layout}  # type: ignore[call-overload]
