"""What validation says of a model's outputs; see `sixfold.scoring.outputs` for the statistics. Old logs have none.

The outputs are those of the weights that the run keeps.
"""

from __future__ import annotations

from sixfold.doctor.course import Course, Finding
from sixfold.scoring.outputs import COPIED, EMPTY, LENGTH, REPEATING

SHORT, LONG = 0.85, 1.2  # characters per character of the reference: BLEU's brevity penalty at 0.85 costs 16 %
MANY_EMPTY = 0.01  # share of outputs: a good model says something to everything
MANY_REPEATING = 0.05  # share of outputs: a reader meets one in every twenty
MANY_COPIED = 0.05

_MORE_TRAINING = "This is usual early in training: train longer first."


def empty_outputs(course: Course) -> Finding | None:
    share = _of_best(course, EMPTY)
    if share is None or share < MANY_EMPTY:
        return None
    return Finding(
        "empty_outputs",
        f"{share:.1%} of the outputs in validation are empty.",
        "Look for empty or misaligned targets (sixfold check), and allow no empty output: --decoding.min_length 1.",
    )


def repeating_outputs(course: Course) -> Finding | None:
    share = _of_best(course, REPEATING)
    if share is None or share < MANY_REPEATING:
        return None
    return Finding(
        "repeating_outputs",
        f"{share:.1%} of the outputs in validation repeat themselves.",
        f"{_MORE_TRAINING} --decoding.no_repeat_ngram_size 4 forbids repetitions.",
    )


def long_outputs(course: Course) -> Finding | None:
    ratio = _of_best(course, LENGTH)
    if ratio is None or ratio < LONG:
        return None
    return Finding(
        "long_outputs",
        f"The outputs in validation are too long: {ratio:.2f} times as long as the references.",
        f"{_MORE_TRAINING} A smaller --decoding.length_penalty or --decoding.max_ratio shortens them.",
    )


def short_outputs(course: Course) -> Finding | None:
    ratio = _of_best(course, LENGTH)
    if ratio is None or ratio > SHORT:
        return None
    return Finding(
        "short_outputs",
        f"The outputs in validation are too short: {ratio:.2f} times as long as the references.",
        f"{_MORE_TRAINING} With a beam, a larger --decoding.length_penalty lengthens them.",
    )


def copied_outputs(course: Course) -> Finding | None:
    share = _of_best(course, COPIED)
    if share is None or share < MANY_COPIED:
        return None
    return Finding(
        "copied_outputs",
        f"{share:.1%} of the outputs in validation are copies of their source.",
        "Look for copies in the training text (sixfold check); --clean leaves them out.",
    )


def _of_best(course: Course, name: str) -> float | None:
    """A statistic of the kept weights' outputs, or of the last ones if no validation was a number."""
    if not course.valid:
        return None
    value = (course.best or course.valid[-1]).get(name)
    return None if value is None else float(value)
