"""Sizes and modifications → a Spec that was built once, without memory, to see that it holds together."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any

import torch
from torch import nn

from sixfold.core.init import SkipInitOnMeta
from sixfold.core.machine_memory import bytes_of
from sixfold.core.parts import declared, unheard
from sixfold.core.place import Sizes
from sixfold.core.quote import quoted
from sixfold.spec.registry import Chosen, changed_slots, choose, find
from sixfold.spec.spec import SLOTS, Spec
from sixfold.transformer import Position

# Who reads a slot in the plain Transformer: to be named where its replacement does not.
_READER = {
    "position": "input",
    "embedding": "tables",
    "norm": "residual",
    "final": "stack",
    "residual": "encoder_layer",
    "attention": "encoder_layer",
    "feed_forward": "encoder_layer",
    "activation": "feed_forward",
    "cross": "decoder_layer",
    "encoder_layer": "stack",
    "decoder_layer": "decoder_stack",
}

_MOST = 100  # modifications of one model

# What a model with one stack has no use for.
_OF_TWO_STACKS = ("cross", "decoder_layer", "decoder_stack", "bridge")


@dataclass(frozen=True)
class Assembly:
    """What a model is made of; enough to make it again."""

    model: type[nn.Module]
    sizes: Sizes
    modifications: tuple[Chosen, ...]
    spec: Spec
    bytes: int  # of its weights

    @property
    def own(self) -> bool:
        """Whether all modifications are sixfold's own."""
        return all(find(chosen.name).own for chosen in self.modifications)


def assemble(sizes: Sizes, modifications: Iterable[Any], model: type[nn.Module]) -> Assembly:
    """The same as `outline`, without the model."""
    return outline(sizes, modifications, model)[0]


def outline(sizes: Sizes, modifications: Iterable[Any], model: type[nn.Module]) -> tuple[Assembly, Any]:
    """Apply the modifications in turn, and check the result. → how to make the model, and the model on `meta`

    A ValueError says so if two of them claim one slot, if a slot was set and the model never reads it,
    if a position acts where the chosen attention never asks it, if a stack shortens the text and another part
    needs it whole, or if a part refuses its place.
    """
    if not isinstance(sizes, Sizes):
        raise ValueError(f"sizes must be sixfold.Sizes, got {type(sizes).__name__}")
    chosen = tuple(choose(wish) for wish in _wishes(modifications))
    spec, owner = _apply(Spec(sizes=sizes), chosen)
    recording = _Recording(spec)
    with torch.device("meta"), SkipInitOnMeta():
        built = model(recording)
    _all_read(spec, owner, recording.reads, model)
    _all_heard(built)
    _positions_act(built, owner)
    _lengths_fit(built, owner)
    return Assembly(model, sizes, chosen, spec, bytes_of(built)), built


def resized(assembly: Assembly, sizes: Sizes, bytes: int) -> Assembly:  # noqa: A002
    """The same model with another vocabulary or number of classes, on which no check depends."""
    spec, _ = _apply(Spec(sizes=sizes), assembly.modifications)
    return replace(assembly, sizes=sizes, spec=spec, bytes=bytes)


def _wishes(modifications: Any) -> list[Any]:
    """One or several, in any form that `choose` reads."""
    if isinstance(modifications, str | Chosen):
        return [modifications]
    if isinstance(modifications, Mapping):
        return list(modifications.items())
    if isinstance(modifications, Iterable):
        wishes = list(islice(modifications, _MOST + 1))
        if len(wishes) > _MOST:
            raise ValueError(f"a model can have at most {_MOST} modifications")
        return wishes
    raise ValueError(f"modifications must be a list of names, got {quoted(modifications)}")


def _apply(spec: Spec, chosen: Iterable[Chosen]) -> tuple[Spec, dict[str, str]]:
    """→ the Spec, and which modification set each slot that was set."""
    owner: dict[str, str] = {}
    for wish in chosen:
        if wish.name in owner.values():
            raise ValueError(f"modification {wish.name!r} is listed twice")
        changed = find(wish.name).change(spec, **wish.options)
        if not isinstance(changed, Spec):
            raise ValueError(f"modification {wish.name!r} must return a Spec, got {type(changed).__name__}")
        if changed.sizes != spec.sizes:
            raise ValueError(f"modification {wish.name!r} changes sizes; a modification may only fill slots")
        for slot in changed_slots(spec, changed):
            if slot in owner:
                raise ValueError(f"{owner[slot]!r} and {wish.name!r} both fill the slot {slot!r}; choose one of them")
            owner[slot] = wish.name
        spec = changed
    return spec, owner


class _Recording(Spec):
    """A Spec that remembers which slots were read. (`replace` reads them all.)"""

    reads: set[str]

    def __init__(self, spec: Spec | None = None, **values: Any):
        """Of a Spec; or, where a part calls `replace` on a recording one, of single values."""
        object.__setattr__(self, "reads", set())
        for f in fields(Spec):
            object.__setattr__(self, f.name, getattr(spec, f.name) if spec else values[f.name])

    def __getattribute__(self, name: str) -> Any:
        if name in SLOTS:
            object.__getattribute__(self, "reads").add(name)
        return object.__getattribute__(self, name)


def _all_read(spec: Spec, owner: dict[str, str], reads: set[str], model: type[nn.Module]) -> None:
    used = {owner[slot] for slot in owner.keys() & reads}
    for slot in sorted(owner.keys() - reads):
        if slot in _OF_TWO_STACKS and "decoder_stack" not in reads and owner[slot] in used:
            continue  # one half of a modification of both stacks
        reader = _READER.get(slot)
        if reader in owner:
            why = f"{_name(getattr(spec, reader))}, which {owner[reader]!r} put into the slot {reader!r}, ignores it"
        else:
            why = f"{model.__name__} has no use for it"
        raise ValueError(f"{owner[slot]!r} fills the slot {slot!r}, which nothing reads: {why}")


def _all_heard(model: nn.Module) -> None:
    """What a part declares must reach those whom it concerns."""
    for part in model.modules():
        if name := unheard(part):
            raise ValueError(
                f"{type(part).__name__} declares {name!r}, which only a sixfold.ModelPart can: derive it from that, "
                f"not from nn.Module"
            )


def _lengths_fit(model: nn.Module, owner: dict[str, str]) -> None:
    """Nobody shortens what another part needs whole."""
    parts = [declared(m) for m in model.modules()]
    if any(part.needs_one_length for part in parts) and not all(part.keeps_length for part in parts):
        mixing, short = owner.get("bridge", "the bridge"), owner.get("stack", "the encoder")
        raise ValueError(f"{mixing!r} adds up the states of all encoder layers, and {short!r} shortens them")


def _positions_act(model: nn.Module, owner: dict[str, str]) -> None:
    """Wherever a position acts, somebody must call it there."""
    asked = {place for m in model.modules() for place in declared(m).position_places}
    for position in {type(m) for m in model.modules() if isinstance(m, Position)}:
        for place in ("rotate", "bias", "values"):
            if position.fills(place) and place not in asked:
                attention = owner.get("attention") or owner.get("encoder_layer") or "this model"
                raise ValueError(
                    f"{owner.get('position', position.__name__)!r} acts by {place!r}, "
                    f"but the attention of {attention!r} never asks for that"
                )


def _name(part: Any) -> str:
    return _name(part.func) if isinstance(part, functools.partial) else getattr(part, "__name__", repr(part))
