"""labels.json: the names of classes come back, or a sentence says what is wrong."""

import pytest

from sixfold.text.labels import read_labels, write_labels


def test_labels_come_back_in_their_order(tmp_path):
    labels = ["b", "a", "ü — \u2028", "10", "9"]
    write_labels(tmp_path, labels)
    assert read_labels(tmp_path) == labels
    assert [each.name for each in tmp_path.iterdir()] == ["labels.json"]


@pytest.mark.parametrize("labels", [["a"], ["a", "a"], ["a", ""], ["a", 3], "ab", None])
def test_labels_that_can_not_be_are_refused(tmp_path, labels):
    with pytest.raises(ValueError, match="label"):
        write_labels(tmp_path, labels)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace('"b"', '"c"'), "changed since it was written"),
        (lambda text: text[:-9], "damaged"),
        (lambda text: text.replace("labels-1", "labels-2"), "format 'sixfold-labels-2'; this version"),
        (lambda text: "[1]", "format None"),
        (lambda text: '{"format": "sixfold-labels-1", "labels": ["a", 1]}', "each label must be a text"),
        (lambda text: '{"format": "sixfold-labels-1"}', "a list of texts, got None"),
        (lambda text: "\udcff", "damaged"),
    ],
)
def test_a_damaged_file_of_labels_is_named(tmp_path, change, words):
    path = tmp_path / "labels.json"
    write_labels(tmp_path, ["a", "b"])
    path.write_bytes(change(path.read_text()).encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"labels\.json can't be read, or is damaged") as raised:
        read_labels(tmp_path)
    assert words in str(raised.value)


def test_a_missing_file_of_labels_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"there is no .*labels\.json"):
        read_labels(tmp_path)
