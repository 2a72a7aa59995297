"""Says how a run went: applies all rules to its log, and compares it with recorded curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sixfold.config.schema import Config
from sixfold.doctor import output_rules as outputs
from sixfold.doctor import training_rules as training
from sixfold.doctor.course import Course, Finding, TextFacts
from sixfold.doctor.recorded import RecordedCurve, compare, points_of, recorded_curves, text_id
from sixfold.runs.run import Run
from sixfold.tasks.task import task_of
from sixfold.text.arrays import Array
from sixfold.text.corpus import Prepared, open_prepared
from sixfold.text.tokenizer import Tokenizers

RULES: tuple[training.TrainingRule, ...] = (  # the most important first
    training.diverged,
    training.rate_too_high,
    training.rate_never_peaked,
    training.overfitting,
    training.still_improving,
    training.validation_unlike_training,
    outputs.empty_outputs,
    outputs.repeating_outputs,
    outputs.long_outputs,
    outputs.short_outputs,
    outputs.copied_outputs,
    training.first_epoch,
    training.rate_too_low,
    training.not_validated,
)
_BY_LOSS = (  # rules that expect the loss to fall: none for a task that maximises something else
    training.rate_too_high,
    training.overfitting,
    training.still_improving,
    training.validation_unlike_training,
    training.rate_too_low,
)
_MOST_IDS = 1 << 24  # tokens of a side that are counted; of a longer text, those at its beginning


def diagnose(course: Course) -> list[Finding]:
    """What the rules find, the most important first."""
    left_out = _BY_LOSS if _maximises(course.config) else ()
    return [found for rule in RULES if rule not in left_out and (found := rule(course)) is not None]


def examine(run: Run) -> list[Finding]:
    """The findings on a run, and last how it compares with a recorded one. Empty before its first step."""
    config, records = run.read_config(), list(run.records())
    if not any(record["kind"] in ("train", "valid") for record in records):
        return []
    prepared = _prepared(run)
    course = Course(records, config, None if prepared is None else text_facts(prepared))
    return [*diagnose(course), compare(curve_of(run, course, prepared), recorded_curves())]


def curve_of(run: Run, course: Course, prepared: Prepared | None = None) -> RecordedCurve:
    """The curve of a run; sizes that are not known any more are 0, and compare with nothing."""
    config, kinds = course.config, course.config.data.tokenizer
    about = _about(run)
    return RecordedCurve(
        name=run.directory.name,
        about=f"sixfold {about.get('versions', {}).get('sixfold')}, {course.step:,} steps",
        task=_task_name(config),
        tokenizer=kinds if isinstance(kinds, str) else f"{kinds.source} → {kinds.target}",
        vocabulary=0 if prepared is None else len(prepared.tokenizers.target),
        epoch_tokens=0 if prepared is None else int(prepared.train.target.lengths.sum()) + len(prepared.train),
        text=text_id(about["hashes"]) if about.get("hashes") else None,
        parameters=parameters_of(run),
        metric=course.metric,
        points=points_of(course),
    )


def parameters_of(run: Run) -> int:
    """The parameters of a run's model; 0 if there is none yet, or it can't be built here."""
    from sixfold.runs import model_files

    try:
        return sum(parameter.numel() for parameter in model_files.skeleton(run.directory).parameters())
    except (OSError, ValueError):
        return 0


def text_facts(prepared: Prepared) -> TextFacts | None:
    """How the validation text differs from the training text; None without validation text."""
    train, valid = prepared.train.target, None if prepared.valid is None else prepared.valid.target
    if valid is None or not len(valid) or not len(train):
        return None
    excess = excess_entropy(train.ids[:_MOST_IDS], valid.ids[:_MOST_IDS], len(prepared.tokenizers.target))
    return TextFacts(excess, float(train.lengths.mean()), float(valid.lengths.mean()))


def excess_entropy(train: Array, valid: Array, words: int) -> float:
    """Σ (q − p) log 1/p with the token frequencies p of training (plus one each) and q of validation.

    The nats per token that validation costs more than training if every token has its frequency in training as its
    probability: 0 for the same frequencies.
    """
    counts = np.bincount(train, minlength=words) + 1.0
    cost = -np.log(counts / counts.sum())
    return float(cost[valid].mean() - cost[train].mean())


def _prepared(run: Run) -> Prepared | None:
    """The prepared text of a run, if it is still there."""
    try:
        return open_prepared(run.data, Tokenizers.load(run.directory))
    except (OSError, ValueError):
        return None


def _about(run: Run) -> Mapping[str, Any]:
    try:
        return run.read_about()
    except ValueError:
        return {}


def _maximises(config: Config) -> bool:
    """Whether the task of a run maximises something else than the likelihood."""
    try:
        return bool(task_of(config).maximised)
    except ValueError:  # a task of the user's own that was not imported
        return False


def _task_name(config: Config) -> str:
    try:
        return task_of(config).name
    except ValueError:  # a task of the user's own that was not imported
        return "unknown"
