"""Random numbers by name: each weight of a model that is being built is drawn from a generator of its own.

A generator's seed is SHA-256 of the model's seed and the parameter's name, so the draws of one part do not change those
of another. Parts declare distributions by `core/init.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn


class Distribution(Protocol):
    """Fills a tensor in place with numbers from this generator, as the random functions of torch.nn.init do."""

    def __call__(self, tensor: Tensor, /, *, generator: torch.Generator | None) -> Any: ...


def generator_of(seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of one parameter of a model: seeded by SHA-256 of the model's seed and the parameter's name.

    Of these 64 bits, torch's CPU generator uses the lowest 32. So two of N parameters get the same numbers with a
    probability of N²/2³³: for 1,000 parameters in one of 8,600 models. That does no harm, since the two are different
    parts of the model and get different gradients.
    """
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little"))


def fill(weight: Tensor, start: Distribution, generator: torch.Generator | None) -> None:
    with torch.no_grad():
        start(weight, generator=generator)


class _Declared(NamedTuple):
    weight: Tensor
    start: Distribution
    total: float | None  # the sum of its provisional values; None: it has none

    def changed(self) -> bool:
        return self.total is not None and self.total != _total(self.weight)


class Drawing:
    """Draws the weights of a model that is being built, each from the generator of its name.

    A user's part may read or change inherited parameters in its constructor. With `provisional`, a declared parameter
    gets values at once; it is drawn again by its name at the end, unless the part has changed it.
    """

    def __init__(self, seed: int, *, provisional: bool):
        self.seed, self._provisional = seed, provisional
        self._waiting: dict[int, _Declared] = {}
        self._seen: set[int] = set()
        self._number = count()
        self._states = _random_states()
        self.not_by_name: list[str] = []  # parameters that parts drew or changed in their constructors
        self.drawn_by_init = False

    def declare(self, weight: Tensor, start: Distribution) -> None:
        total = None
        if self._provisional:
            fill(weight, start, generator_of(self.seed, f"declared {next(self._number)}", weight.device))
            total = _total(weight)
        self._waiting[id(weight)] = _Declared(weight, start, total)

    def begin(self, model: nn.Module, init: Callable[[], None]) -> None:
        """Draw all weights, run `init`, and draw again the weights for which `init` declared another distribution."""
        undeclared = self._draw(model)
        if self._others_drew() or not self._provisional:  # else they were computed
            self.not_by_name += undeclared
        init()
        self.drawn_by_init = self._others_drew()
        self._draw(model)

    def _draw(self, model: nn.Module) -> list[str]:
        """→ the names of undeclared parameters whose values vary"""
        undeclared = []
        for name, weight in model.named_parameters():
            declared, new = self._waiting.pop(id(weight), None), id(weight) not in self._seen
            self._seen.add(id(weight))
            if declared is None:
                undeclared += [name] if new and _varies(weight) else []
            elif declared.changed():
                self.not_by_name += [name] if _varies(weight) else []
            else:
                fill(weight, declared.start, generator_of(self.seed, name, weight.device))
        return undeclared

    def _others_drew(self) -> bool:
        """Whether torch's own generators were used since the last call."""
        before, self._states = self._states, _random_states()
        return any(not torch.equal(old, new) for old, new in zip(before, self._states, strict=True))


_drawing: ContextVar[Drawing | None] = ContextVar("the drawing of the model that is being built", default=None)


def current() -> Drawing | None:
    """The drawing of the model that is being built; None outside `build`."""
    return _drawing.get()


@contextmanager
def drawing(seed: int | None, *, provisional: bool) -> Iterator[Drawing]:
    """Within it, weights are drawn by name. Without a seed, torch's own generator gives one.

    With `provisional`, torch's own generators are seeded inside, and restored on exit.
    """
    seed = int(torch.randint(2**63 - 1, (), device="cpu") if seed is None else seed)
    with torch.random.fork_rng(range(torch.cuda.device_count()), enabled=provisional):
        if provisional:
            torch.manual_seed(generator_of(seed, "").initial_seed())
        made = Drawing(seed, provisional=provisional)
        token = _drawing.set(made)
        try:
            yield made
        finally:
            _drawing.reset(token)


def begin(model: nn.Module, init: Callable[[], None]) -> None:
    """Draw the weights of a model once all its parts exist; then run `init`, which may change them."""
    if (by_name := current()) is None:
        init()
    else:
        by_name.begin(model, init)


def _random_states() -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]


def _total(weight: Tensor) -> float:
    return weight.detach().sum(dtype=torch.float64).item()


def _varies(weight: Tensor) -> bool:
    return weight.numel() > 1 and not weight.is_meta and bool((weight != weight.flatten()[0]).any())
