"""A cleaned copy: what is suspicious is gone, what is good is there, and the original is as it was."""

import gzip

import pytest

from sixfold.config.schema import Data
from sixfold.doctor.cleaning import clean
from sixfold.doctor.text_doctor import check_text
from sixfold.doctor.text_report import lines
from sixfold.text.forms import LABELLED_TEXT, PAIRS, PLAIN_TEXT
from tests.support.doubtful import BAD, GOOD, pairs, write_pairs


def quiet(*_):
    pass


def cleaned(out, form, **data):
    check = check_text(Data(**{key: str(value) for key, value in data.items()}), form, quiet)
    return check, clean(check, out, quiet)


def test_good_pairs_stay_in_order_and_the_rest_is_counted_by_reason(tmp_path):
    prefix, out = write_pairs(tmp_path), tmp_path / "out"
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    check, written = cleaned(out, PAIRS, train=prefix, source="en", target="de")
    good = [pair for pair in dict.fromkeys(pairs()) if pair not in BAD.values()]
    for side, ending in enumerate(("en", "de")):
        assert (out / f"train.{ending}").read_text().splitlines() == [pair[side] for pair in good]
    assert written["train"].kept == len(good)
    assert written["train"].dropped == {**dict.fromkeys(BAD, 1), "duplicate": 1}
    assert {path: path.read_bytes() for path in before} == before
    said = [*lines(check, written)]
    assert f"written: train, {len(good)} pairs; dropped 8:" in said
    again = check_text(Data(train=str(out / "train"), source="en", target="de"), PAIRS, quiet)
    assert again.parts["train"].counts == {}


def test_test_text_keeps_all_rows_and_training_loses_what_it_has(tmp_path):
    test = [GOOD[1], ("same text twice", "zweimal"), ("same text twice", "zweimal")]
    write_pairs(tmp_path, test, "test")
    data = {"train": write_pairs(tmp_path, GOOD), "test": tmp_path / "test", "source": "en", "target": "de"}
    _, written = cleaned(tmp_path / "out", PAIRS, **data)
    assert (tmp_path / "out" / "test.en").read_bytes() == (tmp_path / "test.en").read_bytes()
    assert (tmp_path / "out" / "train.en").read_text().splitlines() == [GOOD[0][0], GOOD[2][0]]
    assert written["train"].dropped == {"held_out": 1}
    assert written["test"].dropped == {}


def test_marks_and_windows_line_ends_are_repaired(tmp_path):
    write_pairs(tmp_path, GOOD)
    (tmp_path / "train.en").write_bytes(b"\xef\xbb\xbfThe house is small.\r\nA cat\r\nWe eat bread.")
    cleaned(tmp_path / "out", PAIRS, train=tmp_path / "train", source="en", target="de")
    assert (tmp_path / "out" / "train.en").read_bytes() == b"The house is small.\nA cat\nWe eat bread.\n"


def test_a_table_keeps_its_header_and_its_other_columns(tmp_path):
    header, first, second = "id\ttext\tlabel", "1\tgood film\tpos", "3\tbad film\tneg"
    (tmp_path / "t.tsv").write_text(f"{header}\n0\tcontrol \x07\tpos\n{first}\n{second}\n4\tbad film\tneg\n")
    cleaned(tmp_path / "out", LABELLED_TEXT, train=tmp_path / "t.tsv")
    assert (tmp_path / "out" / "t.tsv").read_text() == f"{header}\n{first}\n{second}\n"


def test_a_table_with_a_mark_and_windows_line_ends_is_repaired(tmp_path):
    (tmp_path / "t.tsv").write_bytes(b"\xef\xbb\xbftext\tlabel\r\ngood film\tpos\r\nbad film\tneg\r\n")
    cleaned(tmp_path / "out", LABELLED_TEXT, train=tmp_path / "t.tsv")
    assert (tmp_path / "out" / "t.tsv").read_bytes() == b"text\tlabel\ngood film\tpos\nbad film\tneg\n"


def test_a_row_of_several_lines_is_kept_or_dropped_whole(tmp_path):
    rows = 'text,label\n"one\nfilm",pos\n"two\r\nfilms\x07",neg\n"three\nfilms",neg\n'
    (tmp_path / "t.csv").write_bytes(rows.encode())
    cleaned(tmp_path / "out", LABELLED_TEXT, train=tmp_path / "t.csv")
    assert (tmp_path / "out" / "t.csv").read_text() == 'text,label\n"one\nfilm",pos\n"three\nfilms",neg\n'


def test_packed_files_are_packed_again(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "good"}\n{"text": "bad \\u0007"}\n'))
    cleaned(tmp_path / "out", PLAIN_TEXT, train=tmp_path / "a.jsonl.gz")
    assert gzip.decompress((tmp_path / "out" / "a.jsonl.gz").read_bytes()) == b'{"text": "good"}\n'


def test_plain_text_keeps_its_empty_lines_and_its_end(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n\ntwo \x07\nthree")
    cleaned(tmp_path / "out", PLAIN_TEXT, train=tmp_path / "a.txt")
    assert (tmp_path / "out" / "a.txt").read_text() == "one\n\n\nthree"


def test_a_directory_that_holds_something_is_refused(tmp_path):
    prefix = write_pairs(tmp_path)
    with pytest.raises(ValueError, match="not an empty directory"):
        cleaned(tmp_path, PAIRS, train=prefix, source="en", target="de")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="not an empty directory"):
        cleaned(tmp_path / "file", PAIRS, train=prefix, source="en", target="de")


def test_nothing_is_written_if_it_fails(tmp_path):
    prefix, out = write_pairs(tmp_path, [BAD["control"]]), tmp_path / "new" / "out"
    with pytest.raises(ValueError, match=r"each of 1 rows of data\.train would be dropped"):
        cleaned(out, PAIRS, train=prefix, source="en", target="de")
    assert not (tmp_path / "new").exists()


def test_files_of_one_name_and_embedded_text_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    write_pairs(tmp_path, GOOD)
    write_pairs(tmp_path / "a", GOOD)
    data = Data(train=[str(tmp_path / "train"), str(tmp_path / "a" / "train")], source="en", target="de")
    with pytest.raises(ValueError, match=r"two files are called train\.en"):
        clean(check_text(data, PAIRS, quiet), tmp_path / "out", quiet)
    with pytest.raises(ValueError, match="comes with sixfold"):
        cleaned(tmp_path / "out", PAIRS, valid="pronounce:valid")
    assert not (tmp_path / "out").exists()
