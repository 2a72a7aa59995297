"""Checks of building a model: on the meta device, with declared weights, from a file, with positions, for decoding."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sixfold.core.device import left_as_it_was
from sixfold.core.drawing import drawing
from sixfold.core.ids import BOS, EOS
from sixfold.core.parts import declared
from sixfold.decoding.cpu.int8 import quantised
from sixfold.decoding.cpu.step import FusedStep, unknown_part
from sixfold.decoding.step import padded
from sixfold.models.build import build
from sixfold.models.count import count
from sixfold.runs.model_files import load, save
from sixfold.spec.assemble import assemble
from sixfold.transformer import NO_POSITION, Position
from sixfold.verify.contract.check import Broken, check, need_difference, need_same
from sixfold.verify.contract.subject import Subject, pad, random_ids, random_rows, seeded, states_of

POSITIONS = ("rotary", "t5_bias", "shaw")
_PLACES = ("rotate", "bias", "values")  # where they act in an attention
_FLOAT32 = 2e-5  # how far log-probabilities of small models in float32 may be apart


@check("take sizes from spec.sizes and shapes from tensors; values (.item(), if tensor.any()) do not exist on meta")
def meta(subject: Subject) -> None:
    """It can be built and run on the meta device, where tensors have shapes but no values."""
    model = build(subject.sizes, subject.modifications, subject.kind, device="meta")
    count(model, source_length=5, target_length=4)


@contextmanager
def _memory_of_nan() -> Iterator[None]:
    """torch.empty gives NaN, so that a weight that nothing sets can be seen."""
    settings: Any = torch.utils.deterministic
    with left_as_it_was():
        torch.use_deterministic_algorithms(True)
        settings.fill_uninitialized_memory = True
        yield


@check(
    "declare how each weight starts: linear(…) in place of nn.Linear(…), parameter(shape, Normal(0.02)) or "
    "declare(weight, …), from sixfold.core.init; a parameter of one number has shape (1,)"
)
def declared_weights(subject: Subject) -> None:
    """Every weight has a declared distribution or a constant, and at least one dimension."""
    spec = assemble(subject.sizes, subject.modifications, subject.type).spec
    with _memory_of_nan(), drawing(0, provisional=True) as by_name:
        model = subject.type(spec)
    if names := by_name.not_by_name:
        raise Broken(f"{names[0]} was drawn in a constructor, so that it depends on every earlier draw")
    if by_name.drawn_by_init:
        raise Broken("the function in the slot 'init' draws from torch's own generator")
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and tensor.isnan().any():
            raise Broken(f"{name} has no first value")
    for name, p in model.named_parameters():
        if p.dim() == 0:
            raise Broken(f"{name} has no dimension, and can't be distributed over processes")


@check(
    "all tensors that a part computes with are parameters, buffers (self.register_buffer), or made in forward: a "
    "loaded model is built on the meta device, where a tensor in another attribute gets no values"
)
@torch.no_grad()
def saved_and_loaded(subject: Subject) -> None:
    """A model that was saved and loaded gives the same bits."""
    model, ids = subject.moved(dtype=torch.float32), random_ids(2, 5, seeded(9))
    with tempfile.TemporaryDirectory(prefix="sixfold-contract-") as folder:
        save(model, folder)
        loaded = load(folder)
    if not torch.equal(states_of(loaded, ids), states_of(model, ids)):
        raise Broken("the loaded model gives other states")


# Positions ---------------------------------------------------------------------------------------------------


@check(
    "position_places names the methods that forward calls on self.position = spec.position(spec, place): "
    "q, k = rotate(q, call), rotate(k, call); scores + bias(q, call); heads + values(weights, call)",
    position=POSITIONS,
)
@torch.no_grad()
def positions(subject: Subject, position: str) -> str | None:
    """A position is refused by `assemble`, or it has an effect in every attention that declares `position_places`."""
    try:
        assemble(subject.sizes, (*subject.modifications, position), subject.type)
    except ValueError as refusal:
        return f"{position} is refused: {refusal}"
    model: Any = subject.moved(position)
    ids = random_ids(2, 6, seeded(1))
    expected = states_of(model, ids, source=ids)
    for part in model.modules():
        for place in set(_PLACES) & set(declared(part).position_places):
            own = [each for each in part.modules() if isinstance(each, Position) and each.fills(place)]
            if own:
                with _idle(own, place):
                    states = states_of(model, ids, source=ids)
                what = f"{type(part).__name__} declares {place!r} in position_places, but {position} changes nothing"
                need_difference(states, expected, what)
    return None


@contextmanager
def _idle(positions: list[Position], place: str) -> Iterator[None]:
    """Switch positions off at one place."""
    for each in positions:
        setattr(each, place, getattr(NO_POSITION, place))
    try:
        yield
    finally:
        for each in positions:
            delattr(each, place)


# Decoding on a CPU -------------------------------------------------------------------------------------------


@check(
    "a form (form=…, or a method form) must describe exactly what forward computes; a part without a form is computed "
    "by its own forward",
    needs=("reads_source", "writes_text"),
)
@torch.inference_mode()
def fast_step(subject: Subject) -> str | None:
    """The fast decoding step on a CPU, which uses the forms of parts, gives the same result as forward."""
    model: Any = subject.moved(dtype=torch.float32)
    if unknown := unknown_part(model):
        return f"it is decoded by forward, because of {unknown}"
    sources, ids = [[5, 9, 7, EOS], [8, EOS]], torch.tensor([[BOS, 7, 12], [BOS, 30, 6]])
    memory = model.encode(padded(sources, torch.device("cpu")))
    step = FusedStep(model)
    state = step.begin(sources)
    for t in range(3):
        scores, log_z, state, *_ = step(ids[:, t : t + 1], state)
        expected = model.log_probs(model.decode(ids[:, : t + 1], memory)[:, -1])
        need_same(scores - log_z[:, None], expected, "log-probabilities by the fast step", _FLOAT32)
    return None


@check(
    "a part must survive copy.deepcopy and .double(); nn.Linear is replaced by its product in int8",
    needs=("writes_text",),
)
@torch.inference_mode()
def int8(subject: Subject) -> None:
    """With linear maps in int8 (`--precision int8`), a row is the same alone and in a batch."""
    model, generator = quantised(subject.moved(dtype=torch.float32)), seeded(22)
    rows, sources = random_rows((5, 5), generator), random_rows((4, 4), generator)
    together = states_of(model, pad(rows), source=pad(sources))
    for row, source, got in zip(rows, sources, together, strict=True):
        need_same(got, states_of(model, row[None], source=source[None])[0], "a row in int8, alone and in a batch")
