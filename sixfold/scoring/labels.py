"""Metrics of predicted labels: accuracy, macro-F1, and precision, recall and F1 of each label.

    precision = TP / (TP + FP)      recall = TP / (TP + FN)      F1 = 2 TP / (2 TP + FP + FN)      where 0 / 0 is 0

For one label, TP counts the texts that have it and are predicted to have it, FP those wrongly predicted to have it, FN
those that have it and are predicted to have another. Macro-F1 is the mean of F1 over all labels that occur, as the
truth or as a prediction: a rare label counts as much as a frequent one. All are in per cent: the numbers of
scikit-learn (`zero_division=0`), times 100.

Letters: C labels, N texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sixfold.core.names import unknown
from sixfold.scoring.error_rates import Hypotheses, PerText, References, matches
from sixfold.scoring.error_rates import check as check_references
from sixfold.scoring.metric import Metric

Values = NDArray[Any]


class LabelScore(NamedTuple):
    """The metrics of one label, in per cent."""

    precision: float
    recall: float
    f1: float
    support: int  # texts that have it


@dataclass(frozen=True)
class LabelReport:
    """All metrics of a list of predictions."""

    labels: tuple[str, ...]  # C, sorted: those that occur, as the truth or as a prediction
    confusion: Values  # (C, C): the number of texts by true label (row) and predicted label (column)
    accuracy: float
    macro_f1: float
    by_label: dict[str, LabelScore]

    def json(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "labels": {label: score._asdict() for label, score in self.by_label.items()},
            "confusion": {"labels": list(self.labels), "counts": self.confusion.tolist()},
        }


def label_report(predicted: Sequence[str], truth: Sequence[str]) -> LabelReport:
    """Compare predictions with the truth, text by text."""
    check(predicted, truth)
    labels = tuple(sorted({*predicted, *truth}))
    confusion = _confusion(predicted, truth, labels)
    right, given, true = np.diag(confusion), confusion.sum(0), confusion.sum(1)
    columns = (_per_cent(right, given), _per_cent(right, true), _per_cent(2 * right, given + true))
    scores = [LabelScore(*row) for row in zip(*(column.tolist() for column in (*columns, true)), strict=True)]
    return LabelReport(
        labels=labels,
        confusion=confusion,
        accuracy=100 * int(right.sum()) / len(truth),
        macro_f1=float(np.mean(columns[2])),
        by_label=dict(zip(labels, scores, strict=True)),
    )


def check(predicted: Sequence[str], truth: Sequence[str]) -> None:
    """Raise a ValueError unless there is a prediction for each label."""
    if isinstance(predicted, str) or isinstance(truth, str):
        raise ValueError("labels must be a list of texts, got one text")
    if len(predicted) != len(truth):
        raise ValueError(f"{len(predicted):,} predictions, but {len(truth):,} labels")
    if not truth:
        raise ValueError("there is nothing to score: no labels")


def _confusion(predicted: Sequence[str], truth: Sequence[str], labels: Sequence[str]) -> Values:
    index = {label: number for number, label in enumerate(labels)}
    cells = [len(labels) * index[right] + index[given] for given, right in zip(predicted, truth, strict=True)]
    return np.bincount(cells, minlength=len(labels) ** 2).reshape(len(labels), len(labels))


def _per_cent(part: Values, total: Values) -> Values:
    """100 · part / total, where 0 / 0 is 0."""
    return 100 * part / np.maximum(total, 1)


# As metrics, for tests of significance -------------------------------------------------------------------------------


def macro_f1(labels: Sequence[str] | None = None) -> Metric:
    """Macro-F1 as a function of sums over the texts (see `Metric`). The default labels are those that occur."""
    counts = partial(macro_f1_counts, labels=labels)
    return Metric("macro_f1", True, partial(_score, "macro_f1"), counts, macro_f1_of, with_labels=macro_f1)


def _score(name: str, predicted: Hypotheses, references: References) -> dict[str, float]:
    report = label_report(predicted, _truth(predicted, references))
    numbers = {"accuracy": report.accuracy, "macro_f1": report.macro_f1}
    return {name: numbers.pop(name), **numbers}


def _truth(predicted: Hypotheses, references: References) -> list[str]:
    check_references(predicted, references)
    if any(len(several) != 1 for several in references):
        raise ValueError("a text has one label, but some references have several; give one label for each text")
    return [label for (label,) in references]


def macro_f1_counts(
    predicted: Hypotheses, references: References, labels: Sequence[str] | None = None
) -> list[PerText]:
    """For each text 3 C numbers, 0 or 1: for each label, whether it is predicted and true, predicted, and true."""
    truth = _truth(predicted, references)
    labels = sorted({*predicted, *truth}) if labels is None else labels
    index = {label: number for number, label in enumerate(labels)}
    for label in (*predicted, *truth):
        if label not in index:
            raise ValueError(unknown("label", label, labels))
    counts = np.zeros((len(truth), 3, len(labels)))
    texts = np.arange(len(truth))
    given, true = (np.array([index[label] for label in each]) for each in (predicted, truth))
    counts[texts, 0, given] = given == true
    counts[texts, 1, given] = 1
    counts[texts, 2, true] = 1
    return [row.ravel().tolist() for row in counts]


def macro_f1_of(rows: Sequence[PerText]) -> float:
    """The macro-F1 of texts by their counts, over the labels that occur in them."""
    right, given, true = np.sum(np.asarray(rows, np.float64), 0).reshape(3, -1)
    occurs = given + true > 0
    return float(np.mean(_per_cent(2 * right, given + true)[occurs])) if occurs.any() else 0.0


LABEL_METRICS = (Metric("accuracy", True, partial(_score, "accuracy"), matches), macro_f1())
