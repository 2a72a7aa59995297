"""Equalities of scores: the loss and the score in the log are those of the model now."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sixfold.scoring.held_out import own_loss, own_references
from sixfold.scoring.metrics import METRICS
from sixfold.training.processes import Processes
from sixfold.training.signals import Signals
from sixfold.training.validation import Validation, choose_metric
from sixfold.verify.equality import Measured, equality
from sixfold.verify.subject import NotApplicable, VerifiedRun

LOSS = 1e-5  # tolerance of the loss per token


@equality(
    "loss",
    "logged loss = loss now",
    left="the validation loss in the log",
    right="the loss of the model now",
    tolerance=LOSS,
)
def loss(subject: VerifiedRun) -> Measured:
    best = _best(subject)
    then, now = float(best["loss"]), _loss(subject)
    return Measured(abs(then - now), left=f"{then:.6f} in the log, {_at(best)}", right=f"{now:.6f} now")


@equality(
    "score",
    "logged score = `score` now",
    left="the validation score in the log",
    right="the score by `sixfold score RUN --part valid`",
    tolerance=0.0,
)
def score(subject: VerifiedRun) -> Measured:
    """Another machine may decide ties differently from that of the log, so a difference of one text is tolerated."""
    best, name = _best(subject), choose_metric(subject.config, subject.task)
    task, tokenizers = subject.task, subject.tokenizers
    if name not in METRICS or task.answers is None or task.user is None:
        raise NotApplicable(f"it was validated by its {name}")
    labels = subject.prepared.labels
    found = own_references(subject.run, subject.config, task, tokenizers, "valid")
    user = task.user(subject.model, tokenizers, subject.config.decoding, labels=labels, data=subject.config.data)
    texts = task.answers(user, [each.source for each in found], lambda: False)
    now = METRICS[name].score(texts, [each.targets for each in found])
    apart = max(abs(float(best[key]) - value) for key, value in now.items())
    left, right = f"{name} {float(best[name]):.4f} in the log, {_at(best)}", f"{now[name]:.4f} now"
    share = 100 / len(found)
    note = f"{share:.3f} would be one of {len(found):,} texts" if apart else ""
    return Measured(apart, note, left, right, tolerance=share)


def _best(subject: VerifiedRun) -> dict[str, Any]:
    """The log's record of the validation that chose the run's model."""
    records = [record for record in subject.run.records() if record["kind"] == "valid" and record.get("best")]
    if not records:
        raise NotApplicable("the log has no validation")
    return records[-1]


def _at(record: dict[str, Any]) -> str:
    return f"step {record['step']:,}"


def _loss(subject: VerifiedRun) -> float:
    """The validation loss, as in training; without a metric, and if the files exist, as `score` computes it."""
    config, tokenizers = subject.config, subject.tokenizers
    if not subject.task.metrics:
        with suppress(ValueError, OSError):
            return float(own_loss(subject.run, config, subject.task, tokenizers, subject.model, "valid").json()["loss"])
    by_loss = config.model_copy(update={"training": config.training.model_copy(update={"metric": "loss"})})
    validation = Validation(by_loss, subject.task, subject.prepared, Processes(device=subject.device))
    if not validation.possible:
        raise NotApplicable("the prepared text has no part to validate on")
    scores = validation.score(subject.model, Signals())
    assert scores is not None
    return scores["loss"]
