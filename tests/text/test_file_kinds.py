"""Files that are no plain UTF-8 lines: one rule for line ends, headers of tables, other formats and encodings."""

import gzip
import json
import sys
from pathlib import Path

import pytest

import sixfold as package
from sixfold.cli.lines import read_lines
from sixfold.config.schema import Data
from sixfold.scoring.report import read_texts, stream_pairs
from sixfold.text.file_kinds import refuse_records, remarks, warnings_of
from sixfold.text.sources import pair_sources, text_sources
from tests.support import runs, tiny
from tests.support.by_kind import prepare
from tests.support.standard_input import Stdin

WINDOWS = b"one\r\ntwo \r x\r\n\r\nlast\r"  # the last line has no end, so that its \r is text
LINES = ["one", "two \r x", "", "last\r"]


def test_a_carriage_return_is_part_of_the_line_end_for_every_reader(tmp_path):
    for end, write in (
        ("", Path.write_bytes),
        (".gz", lambda path, data: path.write_bytes(gzip.compress(data, mtime=0))),
    ):
        plain, table = tmp_path / f"x.txt{end}", tmp_path / f"x.tsv{end}"
        write(plain, WINDOWS)
        write(table, b"a\tb\r\nc\td\r\n")
        assert [*read_lines(plain)] == read_texts(plain) == LINES
        assert [*stream_pairs(plain, plain)] == [(line, line) for line in LINES]
        (text,) = text_sources(Data(train=str(plain)), "train")
        assert "".join(stretch for stretch, _ in text.read()) == "one\ntwo \r x\n\nlast\r"
        (pairs,) = pair_sources(Data(train=str(table)), "train")
        assert [*pairs.read()] == [("a", "b"), ("c", "d")]


def test_windows_line_ends_are_translated_like_others(sixfold, tmp_path):
    run = runs.translating(tmp_path / "run")
    for name, data in (("unix", b"a b\nc\n"), ("windows", b"a b\r\nc\r\n")):
        Path(name).write_bytes(data)
        code, out, err = sixfold("translate", run, name, "--format", "jsonl", "--device", "cpu")
        assert (code, [json.loads(line)["source"] for line in out.splitlines()]) == (0, ["a b", "c"]), err
    translator = package.load(run, device="cpu")
    assert translator.translate(["a b\r\n"])[0].tokens == translator.translate(["a b"])[0].tokens


def prepared(folder, train):
    (folder / "train.tsv").write_bytes(train)
    config = tiny.config(
        folder, data__train=str(folder / "train.tsv"), data__valid="null", data__held_out=0, data__source="1"
    )
    config = config.model_copy(update={"data": config.data.model_copy(update={"target": "2"})})
    return prepare(config, folder / "data").report


def test_windows_line_ends_get_a_note_and_are_not_learned(tmp_path):
    report = prepared(tmp_path, b"ab\tb a\r\nba\ta b\r\n")
    assert report.splits["train"].target_tokens == 4
    assert report.lines()[-1] == (
        f"note: {tmp_path}/train.tsv has Windows line ends (\\r\\n); the \\r is part of the line end, not of the text"
    )
    assert prepared(tmp_path, b"ab\tb a\nba\ta b\n").remarks == ()


@pytest.mark.parametrize("header", ["source\ttarget", "\ufeffen\tde", "English\tGerman", "SRC\tTGT\tdomain"])
def test_a_header_that_is_read_as_text_gets_a_warning_that_shows_it(tmp_path, header):
    report = prepared(tmp_path, f"{header}\nab\tb a\n".encode())
    source, target = header.removeprefix("\ufeff").split("\t")[:2]
    assert report.splits["train"].lines == 2  # it is not dropped in silence
    (warning,) = report.remarks
    assert f"line 1: {source!r} and {target!r} look like names of columns" in warning
    assert f"if they are names, give --data.source {source} --data.target {target}" in warning


@pytest.mark.parametrize("first", ["cat\tk a t", "no\tn o", "source\ts o r s", "text"])
def test_a_first_line_of_text_gets_no_warning(tmp_path, first):
    pairs = f"{first}\ty\nab\tb a\n" if "\t" not in first else f"{first}\nab\tb a\n"
    assert prepared(tmp_path, pairs.encode()).remarks == ()


def test_carriage_returns_that_end_no_line_get_a_warning(tmp_path):
    """A table of an old Macintosh is one line, whose cells are a, "b\\rc" and d."""
    report = prepared(tmp_path, b"ab\tb a\rba\ta b\r")
    assert report.splits["train"].lines == 1
    (warning,) = report.remarks
    assert f"{tmp_path}/train.tsv, line 1: carriage returns (\\r, 1 here) are read as text" in warning
    assert "tr '\\r' '\\n' < FILE > NEW" in warning


def test_json_that_is_learned_as_text_gets_a_warning(tmp_path):
    (tmp_path / "x.txt").write_text('{"text": "a b"}\n' * 3)
    data = Data(train=str(tmp_path / "x.txt"))
    (warning,) = remarks(data, [tmp_path / "x.txt"], pairs=False)
    assert warning.endswith("and the names of its fields; give it a name that ends in .jsonl to read its fields")
    (tmp_path / "x.jsonl").write_text('{"text": "a b"}\n' * 3)
    assert remarks(data, [tmp_path / "x.jsonl"], pairs=False) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"source": "a b"}\n', "line 1: a JSON object is read as text"),
        ("{}\n", "line 1: a JSON object is read as text"),
        ("a b\rc d\r", "line 1: carriage returns (\\r, 1 here)"),
        ("{a} b\n", None),
        ("[1, 2]\n", None),
        ("a b\r\n", None),
        ('a\n{"source": "a b"}\n', None),
    ],
)
def test_a_first_line_that_may_be_several_texts_gets_a_warning(sixfold, tmp_path, monkeypatch, line, words):
    run = runs.translating(tmp_path / "run")
    Path("in.txt").write_bytes(line.encode())
    for name, file in (("in.txt", ["in.txt"]), ("standard input", [])):
        monkeypatch.setattr(sys, "stdin", Stdin(line.encode()))
        code, out, err = sixfold("translate", run, *file, "--device", "cpu")
        warned = [each for each in err.splitlines() if each.startswith("warning: ")]
        assert (code, len(out.splitlines())) == (0, line.count("\n") or 1), err
        assert [name in each and str(words) in each for each in warned] == [True] * (words is not None), err


@pytest.mark.parametrize("find", [pair_sources, text_sources])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x.csv", ["data.train", "x.csv holds comma-separated values", ".tsv"]),
        ("x.CSV.gz", ["comma-separated values"]),
        ("x.json", ["x.json is a JSON document", ".jsonl", "jq -c"]),
    ],
)
def test_other_formats_of_training_text_are_named(tmp_path, find, name, words):
    (tmp_path / name).write_bytes(b"a,b\n")
    with pytest.raises(ValueError) as error:
        find(Data(train=str(tmp_path / name)), "train")
    assert all(word in str(error.value) for word in words), error.value


def test_a_prefix_may_end_like_another_format(tmp_path):
    for end in ("en", "de"):
        (tmp_path / f"x.json.{end}").write_text("a\n")
    (pairs,) = pair_sources(Data(train=str(tmp_path / "x.json"), source="en", target="de"), "train")
    assert [*pairs.read()] == [("a", "a")]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("a\tb\n".encode("utf-16"), "is UTF-16, not UTF-8"),
        ("a\tb\n".encode("utf-16-le"), "is UTF-16"),
        ("a\tb\n".encode("utf-16-be"), "is UTF-16"),
        (gzip.compress(b"a\tb\n", mtime=0), "is compressed by gzip: give it a name that ends in .gz"),
        (b"PK\x03\x04\x14\x00\n", "is a ZIP archive, or a document such as .docx"),
        (b"%PDF-1.7\n", "is a PDF"),
    ],
)
def test_other_encodings_are_named(tmp_path, data, words):
    file = tmp_path / "x.tsv"
    file.write_bytes(data)
    (pairs,) = pair_sources(Data(train=str(file)), "train")
    for read in (pairs.read, lambda: read_lines(file), lambda: read_texts(file)):
        with pytest.raises(ValueError, match=r"x\.tsv is ") as error:
            [*read()]
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x.jsonl", "x.jsonl holds JSON records: extract the texts first (jq -r .source x.jsonl > x.txt)"),
        ("x.jsonl.gz", "JSON records"),
        ("x.tsv", "cut -f 1 x.tsv > x.txt"),
        ("x.csv", "comma-separated values"),
        ("x.json", "a JSON document"),
    ],
)
def test_files_whose_lines_are_more_than_a_text_are_not_translated(sixfold, tmp_path, name, words):
    run = runs.translating(tmp_path / "run")
    Path(name).write_text('{"source": "a b"}\n')
    for verb in (("translate", run, name), ("score", "--hyp", name, "--ref", name)):
        code, out, err = sixfold(*verb)
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert words in err


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ('{"text": "a b", "label": "x"}', "text"),
        ('{"id": 3, "text": "a b"}', "text"),
        ('{"target": "c", "source": "a b"}', "source"),
        ('{"the text": "a b"}', "source"),
    ],
)
def test_the_field_with_the_text_is_named(tmp_path, record, field):
    (tmp_path / "x.jsonl").write_text(record + "\n")
    with pytest.raises(ValueError, match=rf"\(jq -r \.{field} "):
        refuse_records(tmp_path / "x.jsonl")
    (warning,) = warnings_of(record + "\n", "x.txt")
    assert f"extract the text with jq -r .{field} <" in warning


def test_terms_may_be_a_table(sixfold, tmp_path):
    run = runs.translating(tmp_path / "run")
    Path("in").write_text("a b c\n")
    Path("terms.tsv").write_text("B\tC\n")
    asked = ("translate", run, "in", "--terms", "terms.tsv", "--beam_size", "8", "--device", "cpu")
    code, out, err = sixfold(*asked)
    assert code == 0, err
    assert {"B", "C"} <= {*out.split()}
