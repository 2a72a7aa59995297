"""Files to rows: what is wrong with a file is said with its name."""

import json

import pytest

from sixfold.scoring.metrics import METRICS
from sixfold.scoring.names import LABEL_METRICS, TEXT_METRICS
from sixfold.scoring.report import (
    check_counts,
    compare_texts,
    comparison_rows,
    find_metrics,
    read_references,
    read_texts,
    score_texts,
)


@pytest.fixture
def write(tmp_path):
    def to(name, content):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / name

    return to


def test_files_are_scored_as_their_lines(write):
    said = write("said", "a b c d\n\na\u2028b\x85c\x0cd\n")  # only \n ends a line
    right = [write("one", "a b c e\nx\na\u2028b\x85c\x0cd"), write("two", "a b c d\ny\nz\n")]
    truth = [("a b c e", "a b c d"), ("x", "y"), ("a\u2028b\x85c\x0cd", "z")]
    texts = ["a b c d", "", "a\u2028b\x85c\x0cd"]
    metrics = find_metrics("exact_match,bleu, pronunciation")
    results = score_texts(read_texts(said), read_references(right, said, 3), metrics)
    assert results == score_texts(texts, truth, metrics)
    assert [result.name for result in results] == [
        "exact_match",
        "bleu",
        "pronunciation",
        "pronunciation_stressed",
        "phone_error_rate",
    ]
    assert results[0].value == pytest.approx(100 * 2 / 3)
    assert results[0].row() == ("exact_match", "66.67", "")
    assert results[1].signature == METRICS["bleu"].signature(truth)
    assert json.loads(json.dumps([result.json() for result in results]))[1]["signature"].startswith("nrefs:2|")


def test_counts_that_differ_are_named(write):
    two, three = write("two.txt", "a\nb\n"), write("three.txt", "a\nb\n\n")
    with pytest.raises(ValueError, match=r"two\.txt has 2 lines, but .*three\.txt has 3"):
        read_references([two, three], two, 2)
    with pytest.raises(ValueError, match=r"three\.txt has 3 lines, but .*two\.txt has 2"):
        read_references([three, two])
    with pytest.raises(ValueError, match=r"two\.txt has 2 lines, but .*three\.txt has 3"):
        check_counts({two: 2, three: 3})
    with pytest.raises(ValueError, match="give at least one file"):
        read_references([], two, 2)


def test_bad_files_are_named(write, tmp_path):
    with pytest.raises(ValueError, match=r"bad\.txt, line 2: byte 0xff at column 3 is not UTF-8"):
        read_texts(write("bad.txt", b"fine\nno\xff\n"))
    with pytest.raises(ValueError, match=r"there is no file .*none"):
        read_texts(tmp_path / "none")
    with pytest.raises(ValueError, match="empty is empty"):
        read_texts(write("empty", ""))


def test_texts_are_what_stands_before_the_end_of_the_line(write):
    assert read_texts(write("spaces", "a \r\n\tb\n\n")) == ["a ", "\tb", ""]


def test_metrics_by_name():
    assert [metric.name for metric in find_metrics()] == ["bleu", "chrf", "ter"]
    assert [metric.name for metric in find_metrics("ter,rouge,rouge2")] == ["ter", "rouge1", "rouge2", "rougeL"]
    assert find_metrics(["exact_match"]) == [METRICS["exact_match"]]
    with pytest.raises(ValueError, match="there is no metric 'BLEU'; did you mean 'bleu'"):
        find_metrics("chrf,BLEU")
    with pytest.raises(ValueError, match="there is no metric ''; there are bleu, chrf, ter, rouge1"):
        find_metrics("")


def test_two_files_are_compared(write):
    right, first, second = (
        write("right", "a\nb\nc\nd\n"),
        write("first", "a\nx\nx\nx\n"),
        write("second", "a\nb\nc\nd\n"),
    )
    first, second, truth = read_texts(first), read_texts(second), read_references([right])
    (found,) = compare_texts(first, second, truth, find_metrics("exact_match"), resamples=20)
    assert (found.first.value, found.second.value, found.p_randomisation) == (25.0, 100.0, 0.25)
    rows = comparison_rows(found, "first", "second")
    assert rows[2][:2] == ("second − first", "+75.00")
    assert rows[4] == ("p, approximate randomisation", "0.2500", "all exchanges")
    assert json.loads(json.dumps(found.json()))["difference"]["value"] == 75.0
    (same,) = compare_texts(first, first, truth, find_metrics("bleu"), resamples=20)
    assert same.p_bootstrap == 1.0
    assert comparison_rows(same)[-1] == ("signature", "", METRICS["bleu"].signature([("a",)]))


def test_the_names_are_those_of_the_metrics():
    assert (*TEXT_METRICS, *LABEL_METRICS) == tuple(METRICS)
