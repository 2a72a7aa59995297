"""The state of parallel streams of text in training: the state after a window is the one before the next window.

    stream 0    a b c │ d e f │ g h i        of each stream one window per step; the gradient
    stream 1    n o p │ q r s │ t u v        ends where a window begins

Letters: B streams.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from sixfold.core.ids import BOS
from sixfold.core.state import Cache, States

_FRESH = "fresh"


def _refuse() -> NoReturn:
    raise ValueError(
        "carry_state needs a model whose state has a fixed size, such as lstm, gru or moe_lstm; the attention of this "
        "one keeps every token"
    )


class CarriedState(Cache):
    """A cache for parts whose state has a fixed size. It counts no tokens: positions begin at 0 in every window."""

    def __init__(self, fresh_B: Tensor):
        super().__init__(rows=len(fresh_B), device=fresh_B.device)
        self._fresh = fresh_B

    @property
    def fresh(self) -> Tensor:
        return self._fresh

    def grow(self, key: Any, new: States) -> States:
        _refuse()

    def share(self, key: Any, new: States) -> tuple[States, Tensor | None]:
        _refuse()

    def finish(self, new: int | Tensor) -> None:
        super().finish(0)
        self._fresh = torch.zeros_like(self._fresh)

    def begin_again(self, rows_B: Tensor) -> None:
        """These rows start from the first state."""
        self._fresh = self._fresh | rows_B

    def detach(self) -> None:
        """Let no gradient flow to earlier windows."""
        self._carried = {key: tuple(state.detach() for state in states) for key, states in self._carried.items()}

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint needs."""
        found = {_FRESH: self._fresh}
        for key, states in self._carried.items():
            found.update({json.dumps([key, number]): state for number, state in enumerate(states)})
        return found

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> CarriedState:
        made, states = cls(tensors[_FRESH]), {name: state for name, state in tensors.items() if name != _FRESH}
        for (depth, part), number in sorted(map(json.loads, states)):
            before = made._carried.get((depth, part), ())
            made._carried[depth, part] = (*before, states[json.dumps([[depth, part], number])])
        return made


class CarryingLosses:
    """`losses(model, batch, cache=…)` of windows that continue each other. A row that begins with BOS begins a text."""

    def __init__(self, losses: Callable[..., Any]):
        self.losses = losses
        self.state: CarriedState | None = None

    def __call__(self, model: Any, batch: Any) -> Any:
        first = batch.inputs[:, 0]
        if self.state is None or len(self.state.fresh) != len(first):
            self.state = CarriedState(torch.ones_like(first, dtype=torch.bool))
        self.state.begin_again(first == BOS)
        terms = self.losses(model, batch, cache=self.state)
        self.state.detach()
        return terms

    def forget(self) -> None:
        """Let all streams go on from the first state: the numbers of this one are no good."""
        self.state = None

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.state is None else self.state.tensors()

    def load(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        self.state = CarriedState.of_tensors({k: t.to(device) for k, t in tensors.items()}) if tensors else None
