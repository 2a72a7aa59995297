"""The models of a translator, generator or classifier, with the copies and steps that are computed from their weights.

An int8 copy, and a step with its weights in the layouts of the gemm, take a while to compute. They are kept from call
to call, as long as they belong to the weights of the models. No number is compared to find that out:

    parameters                                                                     int8 copies and steps are
    ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    frozen (`requires_grad_(False)`, as `sixfold.load` does), and not changed       kept
    frozen, then changed in place, or replaced; a module replaced, or hooked        computed anew
    not frozen: an optimiser may change them, and torch does not count it           computed for each call

torch counts in-place changes of a tensor (`tensor._version`), but not those through `tensor.data` or `tensor.numpy()`,
nor those of fused optimisers. `changed()` announces a change that torch does not count, a change of an attribute that
is neither a tensor nor a module, and that a model was frozen again after training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, NamedTuple, TypeVar

from sixfold.config.schema import Decoding
from sixfold.core.tap import Tap
from sixfold.decoding.alignment import watched_layer
from sixfold.decoding.cpu.int8 import quantised
from sixfold.decoding.cpu.step import make_step
from sixfold.decoding.cpu.torch_private import change_count, hooks, tensors
from sixfold.decoding.ensemble import Ensemble
from sixfold.decoding.step import StepFunction
from sixfold.models.model import Model

AnyModel = TypeVar("AnyModel", bound=Model)


class Contents(NamedTuple):
    """The modules, tensors and hooks of models, and torch's counts of changes."""

    objects: list[Any]  # compared by identity
    counts: list[tuple[int, int]]  # of each tensor: its in-place changes, and the address of its memory

    @classmethod
    def of(cls, models: Sequence[Model]) -> Contents | None:
        """None if weights may change without being counted."""
        parts = [part for model in models for part in model.modules()]
        held = [tensor for part in parts for tensor in tensors(part)]
        counts = [(count, tensor.data_ptr()) for tensor in held if (count := change_count(tensor)) is not None]
        if len(counts) < len(held) or any(tensor.requires_grad for tensor in held):
            return None
        return cls([*parts, *held, *(hook for part in parts for hook in hooks(part))], counts)

    def same(self, other: Contents) -> bool:
        return (
            self.counts == other.counts
            and len(self.objects) == len(other.objects)
            and all(mine is theirs for mine, theirs in zip(self.objects, other.objects, strict=True))
        )


class Lease(NamedTuple):
    """A step that one search uses at a time, and the models it was made of."""

    models: Sequence[Model]
    step: StepFunction
    idle: list[StepFunction]  # to which it is given back; no longer read after the weights have changed

    def end(self) -> None:
        """Give the step back, after the search has ended."""
        self.idle.append(self.step)


class OwnedModels(Generic[AnyModel]):
    """Models, and the int8 copies and steps that belong to their present weights."""

    def __init__(self, models: Sequence[AnyModel]):
        self.models = tuple(models)
        self.changed()

    def changed(self) -> None:
        """Forget all that was computed from the weights."""
        self._contents: Contents | None = None  # of the models when the copies and steps were made
        self._copies: dict[str, list[Model]] = {}  # by `decoding.precision`
        self._idle: dict[tuple[str, bool, bool], list[StepFunction]] = {}  # by precision, `watching` and `gated`

    def in_precision(self, decoding: Decoding) -> list[Model]:
        """The models, or their int8 copies."""
        now = Contents.of(self.models)
        if now is None or self._contents is None or not now.same(self._contents):
            self.changed()
            self._contents = now
        copies = self._copies
        if decoding.precision not in copies:
            copies[decoding.precision] = [
                quantised(each) if in_8_bits(each, decoding) else each for each in self.models
            ]
        return copies[decoding.precision]

    def lend(self, decoding: Decoding, watching: bool, tap: Tap | None = None, gated: bool = False) -> Lease:
        """A step in this precision. If `watching`, it returns the attention that alignments are read from."""
        models, kind = self.in_precision(decoding), (decoding.precision, watching, gated)
        idle = self._idle.setdefault(kind, []) if tap is None else []  # the step of a tap is for one search
        with suppress(IndexError):
            return Lease(models, idle.pop(), idle)
        layers = [watched_layer(model) if watching else None for model in models]
        steps = [make_step(model, layer, tap, gated=gated) for model, layer in zip(models, layers, strict=True)]
        return Lease(models, steps[0] if len(steps) == 1 else Ensemble(steps), idle)


def in_8_bits(model: Model, decoding: Decoding) -> bool:
    """Whether the model decodes with linear maps in int8."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    return decoding.precision == "int8" or (decoding.precision == "auto" and on_cpu)


@contextmanager
def frozen(*models: Model) -> Iterator[None]:
    """Freeze models, so that their int8 copies and steps are kept between calls; afterwards, unfreeze them."""
    trainable = [parameter for model in models for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
