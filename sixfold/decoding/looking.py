"""The options by which a session shows more than texts: of its search, of its model, and of each output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sixfold.core.inputs import check_tap
from sixfold.core.tap import Tap
from sixfold.decoding.job import Job
from sixfold.models.model import Gates


@dataclass(frozen=True)
class Looking:
    """The options `tap`, `gates`, `trace`, `alignment` and `attention` of a session.

    A tap or gates reach into the model, which only `ModelStep` allows; it computes the same as the fast step of a CPU.
    """

    tap: Tap | None = None  # collects from every pass; each step of a trace holds the tensors of its sentence
    gates: Gates | None = None  # of every job: "decoder.3.cross" → (1, H), factors on the outputs of heads
    trace: bool = False  # whether every output has the trace of its search
    alignment: bool = False  # whether every translation has its alignment
    attention: bool = False  # whether every translation has its attention weights

    def __post_init__(self) -> None:
        check_tap(self.tap)
        if self.gates is not None and not isinstance(self.gates, Mapping):
            got = type(self.gates).__name__
            raise ValueError(f'gates are a mapping such as {{"decoder.3.cross": tensor of (1, heads)}}, got {got}')

    @classmethod
    def among(cls, options: Mapping[str, Any]) -> tuple[Looking, dict[str, Any]]:
        """These options, and the others."""
        own = {field.name for field in fields(cls)} & options.keys()
        return cls(**{name: options[name] for name in own}), {k: v for k, v in options.items() if k not in own}

    def check(self, models: int, workers: int = 0) -> None:
        """Raise a ValueError if an option is not possible with these numbers of models and workers."""
        if self.tap is not None and models > 1:
            raise ValueError(f"a tap looks into one model, and this is an ensemble of {models}")
        if workers and (self.tap is not None or self.gates or self.trace or self.attention):
            raise ValueError("tap, gates, trace and attention work in this process only: leave out workers")

    def at(self, job: Job) -> Job:
        """The job with the gates and the trace that are asked for."""
        return replace(job, gates=self.gates, trace=self.trace) if self.gates or self.trace else job


NOTHING_SHOWN = Looking()
