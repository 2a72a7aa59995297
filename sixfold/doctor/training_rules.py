"""Rules that judge a training by its log: one for each finding, the most important first.

Each threshold has its reason beside it. A rule that lacks data (few lines, no validation) finds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from statistics import median

from sixfold.doctor.course import Course, Finding, Point, last_until, value_at

TrainingRule = Callable[[Course], Finding | None]

SMALL = 0.02  # relative change of a validation loss: two seeds of the same small run differ by about as much
LAST = 0.25  # share of a run whose progress says whether it was still improving
FEW = 3  # validations, or lines of the log: fewer show no trend

SPIKE_NATS, SPIKE_DIFFERENCES = 0.5, 4.0  # a logged loss this far above the lowest is a spike, as for the guard
SPIKES = 2  # lines: one may be an odd batch
SKIPPED = 3  # steps that are not finite: one or two may be odd batches
BURST = 10  # times the median norm of the gradient
AT_PEAK = 0.9  # share of the peak from which a rate counts as full
FULL_LINES = 12  # lines of the log at the full rate: with fewer, the falls of the loss in their thirds are noise
STEADY = 0.8  # the last third's fall divided by the middle third's; a loss like 1/√step or −log(step) has at most 0.6
FALL = 0.3  # nats in the last two thirds; a loss that falls less has levelled off, and a higher rate would not help
CLIPPED = 0.1  # share of gradients above training.clip; where it is lower, clipping rarely shortens a step

GAP = 0.5  # nats per token between validation and training at the first validation; it is too early for overfitting
EXCESS = 0.3  # nats per token: a random split of one text has less than 0.1
LONGER = 1.5  # ratio of mean lengths


def diverged(course: Course) -> Finding | None:
    """The guard gave up."""
    if not course.events["gave up"]:
        return None
    return Finding("diverged", f"Training diverged at step {course.step:,} and was given up.", _lower_rate(course))


def rate_too_high(course: Course) -> Finding | None:
    """Roll-backs, steps that are not finite, spikes of the loss or bursts of the gradient."""
    found = {
        "roll-back": (course.events["rolled back"], 1),
        "skipped step": (course.events["skipped"], SKIPPED),
        "spike of the loss": (len(spikes(course.train_loss)), SPIKES),
        "burst of the gradient": (len(bursts(course.gradients)), SPIKES),
    }
    signs = [f"{number} {_plural(name, number)}" for name, (number, least) in found.items() if number >= least]
    if not signs or course.events["gave up"]:
        return None
    return Finding("rate_too_high", f"The learning rate is too high: {', '.join(signs)}.", _lower_rate(course))


def rate_never_peaked(course: Course) -> Finding | None:
    """The run ended in its warm-up."""
    if not course.stopped or course.step >= course.warmup:
        return None
    return Finding(
        "rate_never_peaked",
        f"The learning rate never reached its peak: the run stopped at step {course.step:,}, and the warm-up has "
        f"{course.warmup:,.0f} steps.",
        "Train longer, or give a warm-up in shares of the run: --training.warmup '10 %'.",
    )


def overfitting(course: Course) -> Finding | None:
    """The validation loss rises while the training loss falls."""
    if not course.valid_loss or not course.train_loss:
        return None
    lowest, last = min(course.valid_loss, key=lambda point: point.value), course.valid_loss[-1]
    later = [point for point in course.valid_loss if point.step > lowest.step]
    before, after = value_at(course.train_loss, lowest.step), course.train_loss[-1].value
    if len(later) < FEW - 1 or last.value < (1 + SMALL) * lowest.value or after >= before:
        return None
    sentence = (
        f"Overfitting since step {lowest.step:,}: from there the validation loss rose from {lowest.value:.3f} to "
        f"{last.value:.3f}, while the training loss fell from {before:.3f} to {after:.3f}."
    )
    if course.metric is not None and course.best is not None and course.best["step"] > lowest.step:
        advice = f"The metric, {course.metric}, improved until step {course.best['step']:,}, whose weights are kept."
    else:
        advice = "The weights of the best validation are kept."
    dropout = min(max(2 * course.config.model.dropout, 0.1), 0.5)
    more = f"a smaller model (--model.d_model) or --model.dropout {dropout:g}"
    return Finding("overfitting", sentence, f"{advice} What helps: more text, {more}.")


def still_improving(course: Course) -> Finding | None:
    """A run that made all its steps had a falling validation loss in its last quarter."""
    points = course.valid_loss
    if not course.complete or len(points) < FEW:
        return None
    last = points[-1]
    before = last_until(points, int((1 - LAST) * last.step))
    if last.value > min(point.value for point in points) or last.value > (1 - SMALL) * before.value:
        return None
    training = course.training
    if training.minutes is not None:
        longer = f"--training.minutes {2 * training.minutes:g}"
    else:
        longer = f"--training.steps {2 * course.step}"
    return Finding(
        "still_improving",
        f"It was still improving when it stopped: from step {before.step:,} on the validation loss fell from "
        f"{before.value:.3f} to {last.value:.3f}.",
        f"Train longer, in a new run: {longer}.",
    )


def validation_unlike_training(course: Course) -> Finding | None:
    """The validation loss is far above the training loss from the start, and the texts differ in words or lengths."""
    if not course.valid_loss or not course.train_loss or course.text is None:
        return None
    first, text = course.valid_loss[0], course.text
    trained, longer = value_at(course.train_loss, first.step), text.valid_length / max(text.train_length, 1e-9)
    signs = []
    if text.excess > EXCESS:
        signs.append(f"its tokens are rarer in the training text (by {text.excess:.1f} nats per token)")
    if not 1 / LONGER < longer < LONGER:
        signs.append(f"its texts are {longer:.1f} times as long")
    if first.value < trained + GAP or not signs:
        return None
    return Finding(
        "validation_unlike_training",
        f"The validation text is unlike the training text: at step {first.step:,} its loss was {first.value:.3f}, that "
        f"of the training text {trained:.3f}; {' and '.join(signs)}.",
        "Validate on text of the kind that the model is for, and train on such text, too.",
    )


def first_epoch(course: Course) -> Finding | None:
    """The run ended before it had read all of the text."""
    if not course.stopped or not course.train or course.train[-1]["epoch"] > 0:
        return None
    return Finding(
        "first_epoch",
        "It stopped within the first epoch: a part of the training text was never read.",
        "Train longer, or train a smaller model (--model.d_model), which reads more text in the same time.",
    )


def rate_too_low(course: Course) -> Finding | None:
    """At the full rate the loss falls as fast at the end as before, without spikes, and few gradients are clipped."""
    full = {point.step for point in course.rates if point.value >= AT_PEAK * course.training.learning_rate}
    points = [point for point in course.train_loss if point.step in full]
    if len(points) < FULL_LINES or spikes(course.train_loss):
        return None
    third = len(points) // 3
    start, middle, end = points[third].value, points[2 * third].value, points[-1].value
    norms = [point.value for point in course.gradients if point.step in full]
    clipped = sum(norm > (course.training.clip or math.inf) for norm in norms) / max(len(norms), 1)
    if start - end < FALL or middle - end < STEADY * (start - middle) or clipped > CLIPPED:
        return None
    return Finding(
        "rate_too_low",
        f"The learning rate may be too low: at the full rate the loss fell as fast at the end as before (from "
        f"{start:.3f} to {middle:.3f}, then to {end:.3f}), and few gradients were clipped.",
        f"Try --training.learning_rate {3 * course.training.learning_rate:.2g}.",
    )


def not_validated(course: Course) -> Finding | None:
    """There is no validation text."""
    if course.valid or not course.complete:  # with validation text, a complete run was validated at its end
        return None
    return Finding(
        "not_validated",
        "Nothing was validated, so nobody knows how well the model does on other text, or whether it overfits.",
        "Give held-out text as --data.valid.",
    )


def spikes(points: list[Point]) -> list[Point]:
    """Losses far above the lowest loss before them."""
    values = [point.value for point in points]
    differences = [abs(after - before) for before, after in pairwise(values)]
    if len(points) < 2 * FEW:
        return []
    far = max(SPIKE_NATS, SPIKE_DIFFERENCES * median(differences))
    return [point for i, point in enumerate(points) if i and point.value > min(values[:i]) + far]


def bursts(points: list[Point]) -> list[Point]:
    """Norms of the gradient far above the median."""
    if len(points) < 2 * FEW:
        return []
    usual = median(point.value for point in points)
    return [point for point in points if point.value > BURST * usual]


def _lower_rate(course: Course) -> str:
    return f"Try --training.learning_rate {course.training.learning_rate / 3:.2g}, or a longer warm-up."


def _plural(noun: str, number: int) -> str:
    first, _, rest = noun.partition(" of ")
    return noun if number == 1 else f"{first}s{' of ' + rest if rest else ''}"
