"""The parts of a trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from sixfold.config.schema import Training
from sixfold.core.batch import Batch, Term
from sixfold.core.carried_state import CarryingLosses
from sixfold.models.model import Model
from sixfold.training.observers.log import Log
from sixfold.training.observers.observer import Observer
from sixfold.training.pace import Pace
from sixfold.training.processes import Processes
from sixfold.training.store import Store
from sixfold.training.validation import Validation


class BatchSource(Protocol):
    """Where batches come from."""

    padding: float
    epoch: int

    def next(self, which: Any = None) -> list[Batch]: ...
    def state(self) -> dict[str, Any]: ...
    def load_state(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a trainer, which it does not build itself."""

    training: Training
    model: Model
    callable: nn.Module  # the model wrapped in DDP or FSDP, or itself
    losses: Callable[[Model, Batch], dict[str, Term]]
    main: str  # the term that is reported as the loss
    carried: CarryingLosses | None = None  # the losses, if they carry a state from step to step
    label: Callable[[str], str]  # a further term → its name in the log
    watched: Callable[[Mapping[str, float]], float]  # the losses of a step → the number that the guard judges
    rewriting: Callable[[tuple[int, ...]], Callable[[Model, Batch], Batch] | None]  # key → the task's `before`
    batches: BatchSource
    optimizers: Sequence[Optimizer]
    processes: Processes
    store: Store
    validation: Validation
    pace: Pace  # how many steps the run has
    log: Log | None = None  # None: no log is written
    observers: Sequence[Observer] = ()  # in the first process
    said: Mapping[str, Any] = field(default_factory=dict)  # data hashes, versions and configuration, for checkpoints
    say: Callable[[str], Any] = lambda text: None
