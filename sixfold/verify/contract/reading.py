"""Checks that a state depends neither on later tokens, nor on padding, nor on other rows of the batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sixfold.core.ids import PAD
from sixfold.verify.contract.check import ACTS, Broken, check, need_same
from sixfold.verify.contract.subject import (
    VOCAB,
    Subject,
    pad,
    random_ids,
    random_rows,
    seeded,
    states_alone,
    states_of,
    words_of,
)

SIDES = ("left", "right")
_HIDE_PADDING = (
    "attention hides padding by call.sight (the memory's by call.memory_sight); a part that adds or compares tokens "
    "in another way leaves out those that are not in call.real"
)


@check("hide later tokens where place.causal is true: attention does so by call.sight", needs=("writes_text",))
def causality(subject: Subject) -> None:
    """No state depends on a later token; every state depends on an earlier one or its own."""
    model, generator, words = subject.model, seeded(1), words_of(subject.model)
    memory = (model.encode(random_ids(2, 4, generator, words)),) if model.reads_source else ()
    embedded: list[Tensor] = []
    hook = model.roles["target"].register_forward_hook(lambda table, ids, x: embedded.append(x))
    states = model.decode(random_ids(2, 6, generator, words), *memory)
    hook.remove()
    # Random weights: after a layer norm, a plain sum of a state would always be 0.
    direction = torch.randn(states.shape[-1], dtype=states.dtype, generator=generator)
    for t in range(6):
        (gradient,) = torch.autograd.grad((states[:, t] @ direction).sum(), embedded, retain_graph=True)
        later = gradient[:, t + 1 :].ne(0).any(-1).any(0).nonzero()
        if len(later):
            raise Broken(f"the state of token {t} depends on token {t + 1 + int(later[0])}")
        if not gradient[:, : t + 1].abs().max() > ACTS:
            raise Broken(f"the state of token {t} depends on no token")


def surround(
    ids: Tensor, pads: int, side: str, generator: torch.Generator, words: int = VOCAB
) -> tuple[Tensor, Tensor]:
    """A row (L,) with garbage at one side, and which of it is real. → (1, L + pads) twice"""
    garbage = torch.randint(0, words, (pads,), generator=generator)
    parts = [(garbage, False), (ids, True)] if side == "left" else [(ids, True), (garbage, False)]
    real = torch.cat([torch.full((len(part),), is_real) for part, is_real in parts])
    return torch.cat([part for part, _ in parts])[None], real[None]


@check(_HIDE_PADDING, side=SIDES)
@torch.no_grad()
def padding(subject: Subject, side: str) -> None:
    """Padding at either side changes no state of a real token."""
    model, generator, words = subject.model, seeded(2), words_of(subject.model)
    row = random_ids(1, 5, generator, words)[0]
    expected = states_of(model, row[None])
    for pads in (1, 2, 7):
        ids, real = surround(row, pads, side, generator, words)
        need_same(states_of(model, ids, real)[real][None], expected, f"{pads} tokens of padding at the {side} matter")


@check(_HIDE_PADDING, needs=("reads_source",), side=SIDES)
@torch.no_grad()
def source_padding(subject: Subject, side: str) -> None:
    """Padding of the source changes neither the memory nor the states of the decoder that reads it."""
    model, generator, words = subject.model, seeded(3), words_of(subject.model)
    source, target = random_ids(1, 5, generator, words)[0], random_ids(1, 4, generator, words)
    memory = model.encode(source[None])
    for pads in (1, 2, 7):
        ids, real = surround(source, pads, side, generator, words)
        padded, what = model.encode(ids, real), f"{pads} tokens of padding at the {side} of the source matter"
        need_same(padded.states[-1][padded.real], memory.states[-1][0], f"{what} to the memory")
        need_same(model.decode(target, padded), model.decode(target, memory), f"{what} to the decoder")


@check(
    "each row must be computed from its own tokens: nothing may be averaged, sorted or counted over the rows, and "
    "PAD is padding (call.real)",
    side=SIDES,
)
@torch.no_grad()
def alone_and_in_a_batch(subject: Subject, side: str) -> None:
    """A row has the same states alone and in a batch."""
    model, generator, words = subject.model, seeded(4), words_of(subject.model)
    rows, sources = random_rows((5, 2), generator, words), random_rows((2, 4), generator, words)
    states = states_of(model, pad(rows, side), source=pad(sources, side))
    for row, source, got, real in zip(rows, sources, states, pad(rows, side) != PAD, strict=True):
        need_same(got[real], states_alone(model, source, row), f"a row of {len(row)} tokens, padded at the {side}")


@check("a pool leaves padding out: its second argument says which tokens are real (None: all)", side=SIDES)
@torch.no_grad()
def class_in_a_batch(subject: Subject, side: str) -> str | None:
    """A text has the same class alone and in a batch."""
    model, rows = subject.model, random_rows((5, 2), seeded(5))
    if not model.sizes.classes:
        return "it predicts words; a classifier is built with sizes=Sizes(classes=…)"
    alone = torch.cat([model.classify(row[None]) for row in rows])
    need_same(model.classify(pad(rows, side)), alone, f"log-probabilities of classes, padded at the {side}")
    return None


@check("a mean over no token, or a softmax over no key, is NaN: take zeros there, as sight.softmax does")
def only_padding(subject: Subject) -> None:
    """A row of nothing but padding gives finite states and gradients."""
    model: Any = subject.moved()
    ids = torch.stack([random_ids(1, 4, seeded(6))[0], torch.zeros(4, dtype=torch.long)])
    states = states_of(model, ids, source=ids)
    states.square().sum().backward()
    if not states.isfinite().all():
        raise Broken("a state is infinite or NaN")
    for name, p in model.named_parameters():
        if p.grad is not None and not p.grad.isfinite().all():
            raise Broken(f"the gradient of {name} is infinite or NaN")
