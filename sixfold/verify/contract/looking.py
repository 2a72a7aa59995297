"""Checks of taps and gates: a tap changes no state, and a gate of 0 removes the effect of a head.

Letters: B rows, H heads, L queries, M keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sixfold.core.ids import PAD
from sixfold.core.masks import past
from sixfold.core.parts import declared
from sixfold.core.tap import Tap
from sixfold.verify.contract.check import Broken, check, need_difference, need_same
from sixfold.verify.contract.reading import SIDES
from sixfold.verify.contract.subject import (
    Subject,
    fresh_cache,
    pad,
    random_ids,
    random_rows,
    seeded,
    states_of,
    states_of_encoder,
)

_EXACTLY = 1e-12
NO_MAP = "no part declares a map"
NO_HEADS = "no part declares heads"
_SHOW = (
    'a ModelPart with self.place = place and map = "softmax" (or "kernel", "slots") shows weights (B, H, L, M) by '
    "call.show(self.place, weights=weights), and a part without a map shows none"
)
_GATE = (
    "a ModelPart with self.place = place and self.heads = … passes the outputs (B, H, L, K) of its heads through "
    "heads = call.gate(self.place, heads), before they are merged"
)


def watched(model: Any, ids: Tensor, source: Tensor) -> tuple[Tensor, Tap]:
    """→ the states, and the tap with the tensors of all stacks"""
    tap = Tap()
    if not model.reads_source:
        return states_of(model, ids, tap=tap), tap
    return model.decode(ids, model.encode(source, tap=tap), tap=tap), tap


@check(_SHOW, side=SIDES)
@torch.no_grad()
def tap_changes_nothing(subject: Subject, side: str) -> str | None:
    """A tap sees the weights of every part that declares a map, and changes no state."""
    model, generator = subject.model, seeded(13)
    for lengths in ((5, 5), (5, 2)):  # without padding the fused kernel takes another route
        ids, source = pad(random_rows(lengths, generator), side), pad(random_rows(lengths, generator), side)
        states, tap = watched(model, ids, source)
        if unseen := [name for name in model.maps if name not in list(tap)]:
            raise Broken(f"{unseen[0]} declares the map {model.maps[unseen[0]]!r}, but shows no weights")
        if undeclared := [name for name in tap if name not in model.maps]:
            raise Broken(f"{undeclared[0]} shows weights, but declares no map")
        real = ids != PAD
        need_same(states[real], states_of(model, ids, source=source)[real], "an open tap changes the states")
    return None if model.maps else NO_MAP


class SeenWeights(NamedTuple):
    """The weights of a part that a tap collected, and the tokens that the part may read."""

    name: str
    weights: Tensor
    keys: Tensor  # (B, 1, L, M): which keys each query may see
    real: Tensor  # (B, L): which queries are not padding


def seen_weights(model: Any, side: str) -> Iterator[SeenWeights]:
    """The weights of each part, collected by a tap in rows that are padded at one side."""
    generator = seeded(14)
    ids, source = pad(random_rows((5, 2), generator), side), pad(random_rows((3, 6), generator), side)
    _, tap = watched(model, ids, source)
    for name in tap:
        encoder, weights = name.startswith("encoder."), tap[name]
        queries = source if encoder else ids
        keys = source if encoder or weights.shape[-1] == source.shape[1] else ids  # the lengths are different
        seen = (keys != PAD)[:, None, None, :].expand(-1, 1, queries.shape[1], -1)
        if keys is ids and model.writes_text:
            seen = seen & past(queries.shape[1], ids.device)
        yield SeenWeights(name, weights, seen, queries != PAD)


@check(_SHOW, side=SIDES)
@torch.no_grad()
def tap_weights(subject: Subject, side: str) -> str | None:
    """Weights have the shape (B, H, L, M) and are zero on hidden tokens; those of a softmax sum to one."""
    model = subject.model
    if not all(declared(part).keeps_length for part in model.modules()):
        return "a stack shortens the text, so that weights are not those of its tokens"
    for name, weights, keys, real in seen_weights(model, side):
        kind, heads = model.maps.get(name), model.attentions.get(name, weights.shape[1])
        if kind not in ("softmax", "kernel"):
            continue
        if weights.shape != (shape := (keys.shape[0], heads, *keys.shape[2:])):
            raise Broken(f"the weights of {name} have shape {tuple(weights.shape)} instead of {shape}")
        weights_NHM, keys_N1M = weights.transpose(1, 2)[real], keys.transpose(1, 2)[real]
        if bool(weights_NHM.masked_select(~keys_N1M).ne(0).any()):
            raise Broken(f"{name} shows a weight on a token that is hidden: padding, or a later token")
        if kind == "softmax":
            sums_NH = weights_NHM.sum(-1)
            need_same(sums_NH, torch.ones_like(sums_NH), f"the weights of {name} do not sum to one", _EXACTLY)
    return None if model.maps else NO_MAP


@check(_SHOW, needs=("writes_text",))
@torch.no_grad()
def tap_on_beams(subject: Subject) -> str | None:
    """In a beam, a tap collects the same tensors with a cache and without."""
    model, generator = subject.model, seeded(16)
    sources, ids = random_rows((4, 2), generator), random_ids(4, 3, generator)
    cached, whole = (Tap(fields=("weights", "heads", "q")) for _ in range(2))
    model.decode(ids, cache=fresh_cache(model, sources).select(torch.tensor([[0, 0], [1, 1]])), tap=cached)
    states_of(model, ids, source=pad(sources).repeat_interleave(2, 0), tap=whole)
    if cached.seen.keys() != whole.seen.keys():
        raise Broken(f"with a cache a tap sees {sorted(cached.seen)}, without it {sorted(whole.seen)}")
    for (name, field), tensor in whole.seen.items():
        need_same(cached[name, field], tensor, f"the {field} of {name} in a beam", _EXACTLY)
    return None if model.maps else NO_MAP


# Gates ---------------------------------------------------------------------------------------------------


class StackPass(NamedTuple):
    """The parts of one stack that have heads, and a pass through that stack."""

    heads: dict[str, int]
    run: Callable[..., Tensor]


def _stacks(model: Any) -> list[StackPass]:
    encoder = {name: heads for name, heads in model.attentions.items() if name.startswith("encoder.")}
    others = {name: heads for name, heads in model.attentions.items() if name not in encoder}
    return [each for each in (StackPass(encoder, states_of_encoder), StackPass(others, states_of)) if each.heads]


def _gates(heads: dict[str, int], rows: int) -> dict[str, Tensor]:
    return {name: torch.ones(rows, number, dtype=torch.float64) for name, number in heads.items()}


@check(_GATE)
@torch.no_grad()
def gate_of_ones(subject: Subject) -> str | None:
    """A gate of ones changes nothing."""
    model, ids = subject.model, random_ids(2, 4, seeded(17))
    for heads, run in _stacks(model):
        gated = run(model, ids, gates=_gates(heads, 1))
        need_same(gated, run(model, ids), f"gates of ones at {', '.join(heads)} change the states", _EXACTLY)
    return None if model.attentions else NO_HEADS


@check(_GATE)
@torch.no_grad()
def gate_of_zero(subject: Subject) -> str | None:
    """A gate of zero switches a head off, which has an effect."""
    model, ids = subject.model, random_ids(2, 4, seeded(18))
    for heads, run in _stacks(model):
        plain = run(model, ids)
        for index, name in enumerate(heads):
            gate, head = _gates({name: heads[name]}, 1), index % heads[name]
            gate[name][0, head] = 0
            what = f"a gate of zero for head {head} of {name} changes nothing"
            need_difference(run(model, ids, gates=gate), plain, what)
    return None if model.attentions else NO_HEADS


@check(_GATE)
@torch.no_grad()
def gate_of_a_row(subject: Subject) -> str | None:
    """A gate for each row acts on its row only."""
    model, ids = subject.model, random_ids(3, 4, seeded(19))
    for heads, run in _stacks(model):
        gates = _gates(heads, 3)
        for gate in gates.values():
            gate[1, 0] = 0.5
        got, plain, where = run(model, ids, gates=gates), run(model, ids), ", ".join(heads)
        alone = run(model, ids[1:2], gates={name: gate[1:2] for name, gate in gates.items()})
        need_same(got[[0, 2]], plain[[0, 2]], f"gates of one row at {where} change other rows", _EXACTLY)
        need_same(got[1], alone[0], f"gates of one row at {where} act in another way in a batch", _EXACTLY)
        need_difference(got[1], plain[1], f"gates of one row at {where} change nothing")
    return None if model.attentions else NO_HEADS


@check(_GATE, needs=("writes_text",))
@torch.no_grad()
def gates_on_beams(subject: Subject) -> str | None:
    """Gates act on the hypotheses of a beam, each on its own."""
    model, generator = subject.model, seeded(20)
    sources, ids = random_rows((4, 2), generator), random_ids(4, 3, generator)
    heads = next((stack.heads for stack in _stacks(model) if stack.run is states_of), {})
    gates = {name: torch.rand(4, number, dtype=torch.float64, generator=generator) for name, number in heads.items()}
    cache = fresh_cache(model, sources).select(torch.tensor([[0, 0], [1, 1]]))
    expected = states_of(model, ids, source=pad(sources).repeat_interleave(2, 0), gates=gates)
    need_same(model.decode(ids, cache=cache, gates=gates), expected, "gates act in another way in a beam")
    return None if heads else NO_HEADS
