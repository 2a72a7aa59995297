"""Accuracy, macro-F1 and the scores of each label: by hand, and by counting text by text."""

from __future__ import annotations

import random

import pytest

from sixfold.scoring.labels import LABEL_METRICS, LabelScore, label_report, macro_f1
from sixfold.scoring.significance import compare

# Five texts: cat cat dog dog bird. Two cats are seen, one of them in a dog; one dog; a fish that nobody is; no bird.
TRUTH = ["cat", "cat", "dog", "dog", "bird"]
SAID = ["cat", "dog", "dog", "cat", "fish"]


def test_by_hand():
    report = label_report(SAID, TRUTH)
    assert report.labels == ("bird", "cat", "dog", "fish")
    assert report.confusion.tolist() == [[0, 0, 0, 1], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert report.accuracy == 40
    assert report.by_label == {
        "bird": LabelScore(0, 0, 0, 1),  # never said: 0 / 0 is 0
        "cat": LabelScore(50, 50, 50, 2),
        "dog": LabelScore(50, 50, 50, 2),
        "fish": LabelScore(0, 0, 0, 0),  # never true, and counts all the same
    }
    assert report.macro_f1 == 25


def test_a_label_that_is_said_too_often():
    """All are called x: of y, precision and F1 are 0; of x, precision 3/4, recall 1, F1 = 6/7."""
    report = label_report(["x"] * 4, ["x", "x", "y", "x"])
    assert report.by_label["x"] == pytest.approx((75, 100, 600 / 7, 3))
    assert report.by_label["y"] == (0, 0, 0, 1)
    assert report.macro_f1 == pytest.approx(300 / 7)


def test_all_right_is_100_per_cent_also_of_one_label():
    for labels in (["a", "b", "a"], ["a"]):
        report = label_report(labels, labels)
        assert (report.accuracy, report.macro_f1) == (100, 100)


def counted(said, truth):
    """The same numbers, text by text."""
    scores = {}
    for label in sorted({*said, *truth}):
        both = sum(a == b == label for a, b in zip(said, truth, strict=True))
        precision = 100 * both / max(said.count(label), 1)
        recall = 100 * both / max(truth.count(label), 1)
        f1 = 2 * precision * recall / (precision + recall) if both else 0.0
        scores[label] = (precision, recall, f1, truth.count(label))
    accuracy = 100 * sum(a == b for a, b in zip(said, truth, strict=True)) / len(truth)
    return accuracy, sum(f1 for _, _, f1, _ in scores.values()) / len(scores), scores


def random_labels(seed):
    chance = random.Random(seed)
    names = [f"label {number}" for number in range(chance.randint(1, 7))]
    texts = chance.randint(1, 40)
    return [[chance.choice(names[: chance.randint(1, len(names))]) for _ in range(texts)] for _ in range(2)]


@pytest.mark.parametrize("seed", range(40))
def test_random_labels_by_another_route(seed):
    said, truth = random_labels(seed)
    report = label_report(said, truth)
    accuracy, macro_f1, scores = counted(said, truth)
    assert (report.accuracy, report.macro_f1) == pytest.approx((accuracy, macro_f1))
    assert report.by_label.keys() == scores.keys()
    for label, score in scores.items():
        assert report.by_label[label] == pytest.approx(score)
    assert report.confusion.sum() == len(truth)


@pytest.mark.parametrize("seed", range(10))
def test_metrics_are_functions_of_sums(seed):
    """Labels that are known and do not occur change nothing; rows may be added up before."""
    said, truth = random_labels(seed)
    references, report = [[label] for label in truth], label_report(said, truth)
    for name, metric in {m.name: m for m in (LABEL_METRICS[0], macro_f1([*sorted({*said, *truth}), "never"]))}.items():
        rows = metric.statistics(said, references)
        summed = [sum(column) for column in zip(*rows, strict=True)]
        score = metric.score(said, references)
        assert next(iter(score)) == name
        assert score == pytest.approx({"accuracy": report.accuracy, "macro_f1": report.macro_f1})
        assert metric.total(rows) == pytest.approx(score[name])
        assert metric.total([summed]) == pytest.approx(score[name])


def test_two_systems_are_compared_although_they_say_different_labels():
    metric = macro_f1(["bird", "cat", "dog", "fish"])
    references = [[label] for label in TRUTH * 4]
    found = compare(SAID * 4, TRUTH * 4, references, metric, resamples=50, trials=50)
    assert (found.first.value, found.second.value, found.better) == (25, 100, "second")


def test_the_report_is_plain_json():
    report = label_report(SAID, TRUTH).json()
    assert report["labels"]["cat"] == {"precision": 50, "recall": 50, "f1": 50, "support": 2}
    assert report["confusion"]["labels"] == ["bird", "cat", "dog", "fish"]
    assert report["confusion"]["counts"][1] == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("said", "truth", "words"),
    [
        (["a"], ["a", "b"], "1 predictions, but 2 labels"),
        ([], [], "nothing to score"),
        ("a", ["a"], "got one text"),
    ],
)
def test_what_can_not_be_compared_is_refused(said, truth, words):
    with pytest.raises(ValueError, match=words):
        label_report(said, truth)


def test_metrics_refuse_other_labels_and_several():
    metric = macro_f1(["cat", "dog"])
    with pytest.raises(ValueError, match="no label 'cta'; did you mean 'cat'"):
        metric.statistics(["cta"], [["cat"]])
    with pytest.raises(ValueError, match="one label"):
        metric.statistics(["cat"], [["cat", "dog"]])
