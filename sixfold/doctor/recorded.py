"""Recorded curves of finished runs, to answer "is this normal?": curves.jsonl has one per line.

    name, about          the recipe, and where the numbers are from
    task, tokenizer      of the run, such as "translation" and "bpe" (or "characters → symbols" for two kinds)
    vocabulary           words of the target side
    epoch_tokens         scored targets in one epoch
    text                 SHA-256 that identifies the data files; null if it is not known
    parameters, metric   of the model; the metric of the points, or null
    points               [tokens seen, validation loss, metric or null]

`python tools/record_curve.py RUN >> sixfold/doctor/curves.jsonl` adds the curve of a run.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import NamedTuple, Self

import numpy as np

from sixfold.doctor.course import Course, Finding

# Runs are compared if their epochs and vocabularies differ by at most these factors. The loss per token grows with the
# logarithm of the vocabulary, and the pieces of a larger one are longer.
FACTOR, VOCABULARY_FACTOR = 2, 1.25
USUAL = 0.15  # relative difference of losses that another model size, learning rate or schedule can cause


class RecordedCurve(NamedTuple):
    """The validations of one run."""

    name: str
    about: str
    task: str
    tokenizer: str
    vocabulary: int
    epoch_tokens: int
    text: str | None
    parameters: int
    metric: str | None
    points: Sequence[tuple[float, float, float | None]]  # tokens seen, loss, metric

    def json(self) -> str:
        return json.dumps(self._asdict(), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> Self:
        read = json.loads(line)
        return cls(**{**read, "points": [tuple(point) for point in read["points"]]})

    def loss(self, tokens: float) -> float:
        """The loss after this number of tokens, interpolated linearly in the logarithm of the number."""
        seen, losses = zip(*((math.log(point[0]), point[1]) for point in self.points), strict=True)
        return float(np.interp(math.log(tokens), seen, losses))


def recorded_curves() -> list[RecordedCurve]:
    """The curves that come with sixfold."""
    text = (resources.files("sixfold.doctor") / "curves.jsonl").read_text(encoding="utf-8")
    return [RecordedCurve.from_json(line) for line in text.splitlines()]


def text_id(hashes: Mapping[str, str]) -> str:
    """A hash of the contents of data files; their names have no effect."""
    return hashlib.sha256("\n".join(sorted({*hashes.values()})).encode()).hexdigest()


def points_of(course: Course) -> list[tuple[float, float, float | None]]:
    """The points of a run's curve: for each validation, the tokens seen so far, the loss and the metric."""
    metric = {record["step"]: record.get(course.metric) for record in course.valid} if course.metric else {}
    return [(round(course.tokens(step)), loss, metric.get(step)) for step, loss in course.valid_loss if step]


def compare(mine: RecordedCurve, recorded: Sequence[RecordedCurve]) -> Finding:
    """Whether the last validation loss of a run is usual for the number of tokens that it has seen."""
    comparable = [curve for curve in recorded if _distance(mine, curve) <= 1]
    if not comparable or not mine.points:
        return Finding("not_compared", "Is this normal? No comparable run is known.")
    curve = min(comparable, key=lambda curve: (curve.text != mine.text, _distance(mine, curve)))
    tokens, loss, _ = mine.points[-1]
    first, last = curve.points[0][0], curve.points[-1][0]
    if tokens * FACTOR < first:
        return Finding(
            "not_compared", f"Is this normal? Too early to say: {curve.name} is recorded from {_say(first)} on."
        )
    then, seen = curve.loss(tokens), min(max(tokens, first), last)
    usual = "as usual" if abs(loss - then) <= USUAL * then else "better" if loss < then else "worse"
    same = "the same text" if curve.text is not None and curve.text == mine.text else "another text of about this size"
    return Finding(
        {"as usual": "normal"}.get(usual, usual),
        f"Is this normal? A recorded run on {same} ({curve.name}, {curve.parameters:,} parameters) had a validation "
        f"loss of {then:.3f} after {_say(seen)}; this one has {loss:.3f} after {_say(tokens)}: {usual}.",
    )


def _distance(one: RecordedCurve, other: RecordedCurve) -> float:
    """How much two runs differ in size: 1 at the limit of what is compared; infinite if task or tokenizer differ."""
    if (one.task, one.tokenizer) != (other.task, other.tokenizer):
        return math.inf
    sizes = (
        (one.epoch_tokens, other.epoch_tokens, FACTOR),
        (one.vocabulary, other.vocabulary, VOCABULARY_FACTOR),
    )
    return max(abs(math.log(max(mine, 1) / max(others, 1))) / math.log(factor) for mine, others, factor in sizes)


def _say(tokens: float) -> str:
    return f"{tokens / 1e6:.3g} million tokens" if tokens >= 1e6 else f"{tokens:,.0f} tokens"
