"""Arrays of tokens on disk."""

import errno
import os

import pytest

from sixfold.text.arrays import ColumnWriter, RowWriter, open_column, open_examples


def test_a_disk_that_is_full_of_tokens_says_so(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no device that is always full")
    for name in ("ids", "offsets"):
        (tmp_path / f"{name}.{name}").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left") as error, RowWriter(tmp_path, name, 9) as writer:
            writer.write([[5] * 9] * 9000)
        assert error.value.errno == errno.ENOSPC


# A number for each row --------------------------------------------------------------------------------


def column(folder, *chunks, below=9):
    with ColumnWriter(folder, "train.label", below) as writer:
        for chunk in chunks:
            writer.write(chunk)
    return writer.described()


def test_a_column_comes_back_as_it_was_written(tmp_path):
    described = column(tmp_path, [3, 0], [], [8])
    assert open_column(tmp_path, "train.label", described).tolist() == [3, 0, 8]
    assert open_column(tmp_path, "train.label", column(tmp_path)).tolist() == []


def test_a_damaged_column_is_named(tmp_path):
    described, path = column(tmp_path, [3, 0, 8]), tmp_path / "train.label.values"
    whole = path.read_bytes()
    for content, words in ((whole[:-1], "has 11 bytes, expected 12"), (whole[::-1], "changed since it was written")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"train\.label\.values.*{words}"):
            open_column(tmp_path, "train.label", described)
    path.unlink()
    with pytest.raises(ValueError, match="is missing"):
        open_column(tmp_path, "train.label", described)
    with pytest.raises(ValueError, match="can't have 'three' numbers"):
        open_column(tmp_path, "train.label", {**described, "rows": "three"})
    for values in ([1, 9], [1, -1]):
        with pytest.raises(ValueError, match="numbers outside 0 to 8"):
            open_column(tmp_path, "train.label", column(tmp_path, values))


def test_examples_hold_columns_as_long_as_their_rows(tmp_path):
    with RowWriter(tmp_path, "train.target", 9) as writer:
        writer.write([[5, 6], [7]])
    arrays = {"target": writer.described(), "groups": [(2, 1.0)]}
    assert open_examples(tmp_path, "train", arrays).columns == {}
    arrays["columns"] = {"label": column(tmp_path, [4, 2])}
    assert open_examples(tmp_path, "train", arrays).columns["label"].tolist() == [4, 2]
    arrays["columns"] = {"label": column(tmp_path, [4, 2, 1])}
    with pytest.raises(ValueError, match="differ in rows"):
        open_examples(tmp_path, "train", arrays)
