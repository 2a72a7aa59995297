"""Sizes and modifications → a Spec, checked by building the model once on the meta device, without memory."""

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
from sixfold.core.parts import declared, ignored_declaration
from sixfold.core.place import Sizes
from sixfold.core.quote import quoted
from sixfold.spec.registry import Chosen, changed_slots, choose, find
from sixfold.spec.spec import SLOTS, Spec
from sixfold.transformer import Position

# The default reader of each slot, for the error when a replacement ignores the slot.
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

# Slots that a model with one stack does not read.
_OF_TWO_STACKS = ("cross", "decoder_layer", "decoder_stack", "bridge")


@dataclass(frozen=True)
class Assembly:
    """All that is needed to build a model again."""

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
    """Apply the modifications in turn, and check the result. → the assembly, and the model on `meta`

    A ValueError is raised if two modifications fill one slot, if the model never reads a slot that was set, if the
    chosen attention never calls a method of the position (rotate, bias, values), if a stack shortens the text while
    another part needs its full length, or if a part refuses its place.
    """
    if not isinstance(sizes, Sizes):
        raise ValueError(f"sizes must be sixfold.Sizes, got {type(sizes).__name__}")
    chosen = tuple(choose(entry) for entry in _entries(modifications))
    spec, owner = _apply(Spec(sizes=sizes), chosen)
    recording = _Recording(spec)
    with torch.device("meta"), SkipInitOnMeta():
        built = model(recording)
    _check_slots_read(spec, owner, recording.reads, model)
    _check_declared_by_model_parts(built)
    _check_declarations(built)
    _check_positions(built, owner)
    _check_lengths(built, owner)
    return Assembly(model, sizes, chosen, spec, bytes_of(built)), built


def slots_filled(sizes: Sizes, modifications: Iterable[Any]) -> set[str]:
    """The slots that these modifications fill."""
    return set(_apply(Spec(sizes=sizes), [choose(entry) for entry in _entries(modifications)])[1])


def resized(assembly: Assembly, sizes: Sizes, bytes: int) -> Assembly:  # noqa: A002
    """The same model with another vocabulary or number of classes, on which no check depends."""
    spec, _ = _apply(Spec(sizes=sizes), assembly.modifications)
    return replace(assembly, sizes=sizes, spec=spec, bytes=bytes)


def _entries(modifications: Any) -> list[Any]:
    """One or several, in any form that `choose` reads."""
    if isinstance(modifications, str | Chosen):
        return [modifications]
    if isinstance(modifications, Mapping):
        return list(modifications.items())
    if isinstance(modifications, Iterable):
        entries = list(islice(modifications, _MOST + 1))
        if len(entries) > _MOST:
            raise ValueError(f"a model can have at most {_MOST} modifications")
        return entries
    raise ValueError(f"modifications must be a list of names, got {quoted(modifications)}")


def _apply(spec: Spec, chosen: Iterable[Chosen]) -> tuple[Spec, dict[str, str]]:
    """→ the Spec, and for each slot that was set the name of the modification that set it."""
    owner: dict[str, str] = {}
    for each in chosen:
        if each.name in owner.values():
            raise ValueError(f"modification {each.name!r} is listed twice")
        changed = find(each.name).change(spec, **each.options)
        if not isinstance(changed, Spec):
            raise ValueError(f"modification {each.name!r} must return a Spec, got {type(changed).__name__}")
        if changed.sizes != spec.sizes:
            raise ValueError(f"modification {each.name!r} changes sizes; a modification may only fill slots")
        for slot in changed_slots(spec, changed):
            if slot in owner:
                raise ValueError(f"{owner[slot]!r} and {each.name!r} both fill the slot {slot!r}; choose one of them")
            owner[slot] = each.name
        spec = changed
    return spec, owner


class _Recording(Spec):
    """A Spec that records which slots were read. (`replace` reads them all.)"""

    reads: set[str]

    def __init__(self, spec: Spec | None = None, **values: Any):
        """Copy a Spec; or take single values, when a part calls `replace` on a recording Spec."""
        object.__setattr__(self, "reads", set())
        for f in fields(Spec):
            object.__setattr__(self, f.name, getattr(spec, f.name) if spec else values[f.name])

    def __getattribute__(self, name: str) -> Any:
        if name in SLOTS:
            object.__getattribute__(self, "reads").add(name)
        return object.__getattribute__(self, name)


def _check_slots_read(spec: Spec, owner: dict[str, str], reads: set[str], model: type[nn.Module]) -> None:
    """Raise a ValueError if a modification fills a slot that the model never reads."""
    used = {owner[slot] for slot in owner.keys() & reads}
    for slot in sorted(owner.keys() - reads):
        if slot in _OF_TWO_STACKS and "decoder_stack" not in reads and owner[slot] in used:
            continue  # the modification changes both stacks, and the model has one of them
        reader = _READER.get(slot)
        while reader is not None and reader not in owner:  # the reader itself may never have been built
            reader = _READER.get(reader)
        if reader is not None:
            why = f"{_name(getattr(spec, reader))}, which {owner[reader]!r} put into the slot {reader!r}, ignores it"
        else:
            why = f"{model.__name__} does not use it"
        raise ValueError(f"{owner[slot]!r} fills the slot {slot!r}, which nothing reads: {why}")


def _check_declared_by_model_parts(model: nn.Module) -> None:
    """Raise a ValueError if a part declares a property without being a ModelPart: its declaration would be ignored."""
    for part in model.modules():
        if name := ignored_declaration(part):
            raise ValueError(
                f"{type(part).__name__} declares {name!r}, which only a sixfold.ModelPart can: derive it from that, "
                f"not from nn.Module"
            )


def _check_declarations(model: nn.Module) -> None:
    """Raise a ValueError if a part declares a property without the attribute by which it is found."""
    for module in model.modules():
        part, name = declared(module), type(module).__name__
        if part.place is None and (part.heads or part.map != "none" or part.limit is not None):
            what = "heads" if part.heads else "a map" if part.map != "none" else "a limit"
            raise ValueError(f"{name} declares {what}, but not its place: set self.place = place in its constructor")
        if part.position_places and not any(isinstance(inside, Position) for inside in module.modules()):
            raise ValueError(
                f"{name} declares position_places, but has no position: set self.position = spec.position(spec, place) "
                f"in its constructor, and call {', '.join(part.position_places)} of it in forward"
            )


def _check_lengths(model: nn.Module, owner: dict[str, str]) -> None:
    """Raise a ValueError if a stack shortens the states while another part needs one length in all layers."""
    parts = [declared(m) for m in model.modules()]
    if any(part.needs_one_length for part in parts) and not all(part.keeps_length for part in parts):
        mixing, short = owner.get("bridge", "the bridge"), owner.get("stack", "the encoder")
        raise ValueError(
            f"{mixing!r} adds the states of all encoder layers, but {short!r} shortens them; choose one of them"
        )


def _check_positions(model: nn.Module, owner: dict[str, str]) -> None:
    """Raise a ValueError if a position implements a method (rotate, bias, values) that no attention calls."""
    called = {method for m in model.modules() for method in declared(m).position_places}
    for position in {type(m) for m in model.modules() if isinstance(m, Position)}:
        for method in ("rotate", "bias", "values"):
            if position.fills(method) and method not in called:
                attention = owner.get("attention") or owner.get("encoder_layer") or "this model"
                raise ValueError(
                    f"{owner.get('position', position.__name__)!r} acts by {method!r}, but the attention of "
                    f"{attention!r} never calls that; choose another position or attention"
                    + _advice_to_declare(attention, method, owner)
                )


def _advice_to_declare(attention: str, method: str, owner: dict[str, str]) -> str:
    """Advice for an attention of the user's own, which may only lack the declaration."""
    if attention not in owner.values() or find(attention).own:
        return ""
    return (
        f". If its forward calls self.position.{method}, declare that in its class: position_places = ({method!r},); "
        f"a class with a forward of its own does not inherit it"
    )


def _name(part: Any) -> str:
    return _name(part.func) if isinstance(part, functools.partial) else getattr(part, "__name__", repr(part))
