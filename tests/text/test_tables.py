"""Texts with labels in tables: what is read, where the columns are, and what is said of files that are wrong."""

from __future__ import annotations

import csv
import random

import pytest

from sixfold.config.schema import Data, Files
from sixfold.text.tables import Row, described_columns, find_columns, table_sources
from tests.support.stand_ins import write


def read(train, **data):
    return [row for source in table_sources(Data(train=train, **data), "train") for row in source.read()]


EXPECTED = [Row("a film, and good", "pos", 2), Row("bad", "neg", 3), Row("", "neg", 4)]


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_all_forms_say_the_same(tmp_path, packed):
    tsv = write(tmp_path / f"a.tsv{packed}", "label\ttext\npos\ta film, and good\nneg\tbad\nneg\t\n")
    comma = write(tmp_path / f"a.csv{packed}", 'text,label\r\n"a film, and good",pos\r\nbad,"neg"\r\n,neg\r\n')
    other = write(tmp_path / f"b.csv{packed}", "text;label\na film, and good;pos\nbad;neg\n;neg")
    assert read(tsv) == read(comma) == read(other) == EXPECTED
    records = '\n{"label": "pos", "text": "a film, and good"}\n{"text": "bad", "label": "neg"}\n'
    records += '{"text": null, "label": "neg"}\n'
    assert read(write(tmp_path / f"a.jsonl{packed}", records)) == [Row("", "", 1), *EXPECTED]
    assert read([tsv, Files(path=comma, weight=2)]) == EXPECTED * 2
    assert [source.weight for source in table_sources(Data(train=[tsv, Files(path=comma, weight=2)]), "train")] == [
        1,
        2,
    ]


def test_a_quoted_field_holds_commas_quotes_and_line_ends(tmp_path):
    """RFC 4180, rules 5 to 7. A row is known by the line where it begins."""
    text = 'text,label\r\n"He said ""no"",\r\nand left",neg\r\n"",pos\r\n5" nail,neg\r\n" spaces ", pos \r\n'
    assert read(write(tmp_path / "x.csv", text)) == [
        Row('He said "no",\nand left', "neg", 2),
        Row("", "pos", 4),
        Row('5" nail', "neg", 5),
        Row(" spaces ", "pos", 6),
    ]


def test_in_a_tsv_a_quotation_mark_is_text(tmp_path):
    assert read(write(tmp_path / "x.tsv", 'text\tlabel\n"open\tpos\n')) == [Row('"open', "pos", 2)]


def test_what_another_program_writes_is_read_back(tmp_path):
    """Python's csv writes it; fields of every character that means something, and one longer than its reader takes."""
    chance = random.Random(3)
    texts = ["".join(chance.choices('ab ,;"\n\té\u2028', k=chance.randint(1, 9))) for _ in range(200)]
    texts += ["x" * 1_000_000, '"', '""', "\n", ","]
    with open(tmp_path / "x.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows([text, "a"] for text in texts)
    assert [row.text for row in read(str(tmp_path / "x.csv"))] == texts


@pytest.mark.parametrize(
    ("first", "source", "target", "found"),
    [  # text, label, whether the first row is a header
        ("id\tReview\tSENTIMENT", None, None, (1, 2, True)),
        ("label\ttitle\ttext", None, None, (2, 0, True)),  # `text` is the likelier name
        ("good\tpos", None, None, (0, 1, False)),
        ("mood\ttext", None, None, (1, 0, True)),
        ("label\tnote", None, None, (1, 0, True)),
        ("a\tb\tc", "c", "a", (2, 0, True)),
        ("a\tb\tc", "3", "1", (2, 0, False)),
        ("a\tb\tc", "3", "a", (2, 0, True)),
        ("x\ttext\tlabel", "2", "3", (1, 2, True)),
        ("x\ttext\tnote", "2", "3", (1, 2, False)),  # one usual name alone may be a text
        ("good\tpos", "2", None, (1, 0, False)),
        ("a\tb\tlabel", "b", None, (1, 2, True)),
        ("label\tclass\tc", "label", None, (0, 1, True)),  # what is the text can't be the label, too
        ("a\tb", "b", None, (1, 0, True)),
        (" text\tlabel ", "text", "label", (0, 1, True)),
    ],
)
def test_where_text_and_label_are(first, source, target, found):
    assert find_columns(first.split("\t"), source, target, "x.tsv, line 1") == found


@pytest.mark.parametrize(
    ("name", "content", "keys", "said"),
    [
        ("x.tsv", "Review\tstars\na\tb\n", {}, "the text is in column 'Review', the label in 'stars'"),
        ("x.tsv", "\na\tb\n", {}, "the text is in column 1, the label in column 2, and line 1 is the first row"),
        ("x.tsv", "a\tb\n", {"source": "1", "target": "2"}, ""),
        (
            "x.tsv",
            "text\tlabel\n",
            {"source": "1", "target": "2"},
            "the text is in column 'text', the label in 'label'",
        ),
        ("x.csv", "text,label\n", {"source": "text", "target": "label"}, ""),
        ("x.csv", "text,label,a\n", {"target": "a"}, "the text is in column 'text', the label in 'a'"),
        ("x.jsonl", '\n{"class": 1, "text": "a", "id": 3}\n', {}, "the text is in field 'text', the label in 'class'"),
        ("x.jsonl", '{"mood": 1, "text": "a"}\n', {}, "the text is in field 'text', the label in 'mood'"),
        ("x.jsonl", '{"mood": 1, "text": "a"}\n', {"source": "text", "target": "mood"}, ""),
    ],
)
def test_what_was_worked_out_is_said(tmp_path, name, content, keys, said):
    path = tmp_path / name
    write(path, content)
    assert described_columns(path, keys.get("source"), keys.get("target")) == said


def test_labels_of_records_are_texts_numbers_or_truths(tmp_path):
    lines = ['"b"', "1", "2.50", "true", "-3"]
    text = "".join(f'{{"text": "a", "label": {label}}}\n' for label in lines)
    assert [row.label for row in read(write(tmp_path / "x.jsonl", text))] == ["b", "1", "2.5", "true", "-3"]


@pytest.mark.parametrize(
    ("name", "content", "keys", "words"),
    [
        ("x.tsv", "text\tlabel\na\tb\nc\n", {}, ["x.tsv, line 3", "1 column,", "the first has 2", "tabs"]),
        ("x.csv", "text,label\na,b,c\n", {}, ["x.csv, line 2", "3 columns", "the first has 2", "quotation marks"]),
        ("x.csv", 'text,label\n"a\nb",x\n\n"c,d\n', {}, ["x.csv, line 5", "never closed"]),
        ("x.csv", 'text,label\n"a,b\n"c",d\n', {}, ["x.csv, line 2", "line 3 has more", 'quotation mark twice ("")']),
        ("x.csv", 'text;label\n"a"b;c\n', {}, ["line 2", "';'"]),
        ("x.csv", "text,label\na\rb,c\n", {}, ["line 2", "carriage return", "quotation marks"]),
        ("x.csv", "text,label\ra,b\rc,d\r", {}, ["line 1", "carriage return", "tr '\\r' '\\n'"]),
        ("x.csv", "text\na\n", {}, ["line 1", "one column", "commas"]),
        ("x.tsv", "id\ttext\tlabel\n", {"target": "lable"}, ["line 1", "'lable'", "did you mean 'label'?", "id, text"]),
        ("x.tsv", "a\ta\tb\n", {"source": "a", "target": "b"}, ["2 columns are named 'a'"]),
        ("x.tsv", "a\tb\n", {"source": "0"}, ["there is no column 0", "counted from 1"]),
        ("x.tsv", "a\tb\n", {"source": "1", "target": "3"}, ["there is no column 3; there are 2"]),
        ("x.tsv", "a\tb\n", {"source": "a", "target": "1"}, ["both name column 1"]),
        ("x.tsv", "a\tb\tc\n", {}, ["give the column", "data.source", "data.target", "'a', 'b', 'c'"]),
        ("x.tsv", "text\tlabel\na\tx\nb\t \n", {}, ["x.tsv, line 3", "the label is empty"]),
        ("x.csv", 'label,text\n"one\ntwo",pos\n', {}, ["line 2", "one line", "is this the text?"]),
        ("x.tsv", f"label\ttext\n{'a' * 2000}\tpos\n", {}, ["at most 1,000 characters", "is this the text?"]),
        ("x.tsv", "text\tlabel\n", {}, ["no row after the names of its columns"]),
        ("x.tsv", "\n \n", {}, ["x.tsv has no row"]),
        ("x.csv", "", {}, ["x.csv is empty"]),
        ("x.tsv", b"text\tlabel\na\xff\tb\n", {}, ["x.tsv, line 2", "0xff", "UTF-8"]),
        ("x.csv", b'text,label\n"a\n\xff",b\n', {}, ["x.csv, line 3", "0xff", "UTF-8"]),
        ("x.jsonl", '{"text": "a", "label": "b"}\n[1]\n', {}, ["x.jsonl, line 2", "expected an object", "list"]),
        ("x.jsonl", '{"text": "a"', {}, ["x.jsonl, line 1", "not JSON"]),
        ("x.jsonl", '{"text": "a", "label": "b"}\n{"text": "a", "lable": "b"}\n', {}, ["line 2", "mean 'lable'?"]),
        ("x.jsonl", '{"text": "a", "mood": "b"}\n', {"target": "mod"}, ["line 1", "no field 'mod'", "mean 'mood'?"]),
        ("x.jsonl", "{}\n", {"target": "mod"}, ["line 1", "no field 'mod', nor any other"]),
        ("x.jsonl", '{"a": "a", "b": "b"}\n', {}, ["line 1", "give the field", "'a', 'b'"]),
        ("x.jsonl", '{"a": "a"}\n', {"source": "a", "target": "a"}, ["both name field 'a'"]),
        ("x.jsonl", '{"text": "a", "label": null}\n', {}, ["line 1", "the label is empty"]),
        ("x.jsonl", '{"text": "a", "label": NaN}\n', {}, ["line 1", "the label is empty"]),
        ("x.jsonl", '{"text": "a", "label": ["b"]}\n', {}, ["line 1", "one label, got ['b']"]),
        ("x.jsonl", '{"text": 3, "label": "b"}\n', {}, ["line 1", "must hold a text, got int"]),
        ("x.jsonl", '{"text": "a", "label": "\\ud800"}\n', {}, ["line 1", "surrogate"]),
    ],
)
def test_a_bad_table_is_named_in_one_sentence(tmp_path, name, content, keys, words):
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError) as raised:
        read(path, **keys)
    assert str(raised.value).startswith(str(tmp_path))
    assert [word for word in words if word not in str(raised.value)] == []
    assert "\n" not in str(raised.value)


def test_a_quote_that_is_not_closed_does_not_swallow_a_large_file(tmp_path):
    lines = "x" * 1023 + "\n"
    path = write(tmp_path / "x.csv", 'text,label\na,b\n"' + lines * (17 << 10))
    with pytest.raises(ValueError, match=r"x\.csv, line 3: a quotation mark .* is never closed"):
        read(path)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("none.csv", "data.train: there is no file 'none.csv'"),
        (
            "reviews.txt",
            "data.train is reviews.txt, but texts and their labels are read from a .tsv, a .csv or a .jsonl",
        ),
        ("pronounce:train", "data.train is pronounce:train"),
        (Files(source="a", target="b"), "data.train is {source: a, target: b}"),
        (["none.csv", "none.tsv"], "'none.csv'"),
        ([], "empty list"),
    ],
)
def test_what_is_no_table_is_named(train, words):
    with pytest.raises(ValueError) as raised:
        table_sources(Data(train=train), "train")
    assert words in str(raised.value)


def test_another_format_is_named_with_what_to_do(tmp_path):
    path = write(tmp_path / "x.json", "[]")
    with pytest.raises(ValueError, match=r"JSON document.*\.jsonl"):
        table_sources(Data(train=path), "train")


def test_there_is_no_source_where_nothing_is_given():
    assert table_sources(Data(), "valid") == []
