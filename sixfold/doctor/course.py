"""The course of a run: its log as curves and events, for the rules that judge it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sixfold.config.schema import Config
from sixfold.scoring.metrics import METRICS
from sixfold.training.schedule import warmup_of

Record = Mapping[str, Any]


class Point(NamedTuple):
    """A value of a curve."""

    step: int
    value: float


class TextFacts(NamedTuple):
    """How a run's validation text differs from its training text, measured in tokens of the target side."""

    # Nats per token: the unigram cross-entropy of the validation text minus that of the training text, both under the
    # frequencies of the training text
    excess: float
    train_length: float  # mean tokens of a row
    valid_length: float


class Finding(NamedTuple):
    """Something that a log shows."""

    name: str
    sentence: str
    advice: str = ""

    def text(self) -> str:
        return f"{self.sentence} {self.advice}".strip()


class Course:
    """The log, the configuration and the text of a run. `text` is None if the prepared text is gone."""

    def __init__(self, records: Iterable[Record], config: Config, text: TextFacts | None = None):
        self.config, self.training, self.text = config, config.training, text
        self.records = list(records)
        self.train = [record for record in self.records if record["kind"] == "train"]
        self.valid = [record for record in self.records if record["kind"] == "valid"]
        self.events = Counter(record["kind"] for record in self.records)

    @cached_property
    def step(self) -> int:
        """The last step."""
        return max((record["step"] for record in self.records), default=0)

    @cached_property
    def steps(self) -> int | None:
        """Steps of the complete run, as planned at the end; None if it never had a plan."""
        planned = (record["steps"] for record in reversed(self.records) if record["kind"] == "plan")
        return self.training.steps or next(planned, None)

    @property
    def stopped(self) -> bool:
        return bool(self.records) and self.records[-1]["kind"] == "stopped"

    @property
    def complete(self) -> bool:
        """Whether it made all its steps: it ended neither by patience nor by a signal."""
        return self.stopped and self.steps is not None and self.step >= self.steps

    @property
    def warmup(self) -> float:
        """Steps of the warm-up."""
        return warmup_of(self.training, self.steps or self.step)

    @cached_property
    def train_loss(self) -> list[Point]:
        return curve(self.train, "loss")

    @cached_property
    def valid_loss(self) -> list[Point]:
        return curve(self.valid, "loss")

    @cached_property
    def gradients(self) -> list[Point]:
        return curve(self.train, "gradient")

    @cached_property
    def rates(self) -> list[Point]:
        return curve(self.train, "learning_rate")

    @cached_property
    def best(self) -> Record | None:
        """The validation whose weights the run's model has."""
        return next((record for record in reversed(self.valid) if record.get("best") is True), None)

    @cached_property
    def metric(self) -> str | None:
        """The metric of the validations besides the loss; None if there is none."""
        return next((name for name in METRICS if self.valid and name in self.valid[-1]), None)

    def tokens(self, step: int) -> float:
        """Scored targets that were seen up to this step, between two lines of the log in proportion."""
        seen = [Point(0, 0.0), *curve(self.train, "tokens")]
        return float(np.interp(step, [point.step for point in seen], [point.value for point in seen]))


def curve(records: Iterable[Record], key: str) -> list[Point]:
    """The finite values of a key; the log has NaN and infinity as text."""
    points = (Point(record["step"], float(record[key])) for record in records if key in record)
    return [point for point in points if math.isfinite(point.value)]


def last_until(points: list[Point], step: int) -> Point:
    """The last point up to this step, or the first one."""
    return next((point for point in reversed(points) if point.step <= step), points[0])


def value_at(points: list[Point], step: int) -> float:
    """The value of the last point up to this step, or of the first one."""
    return last_until(points, step).value
