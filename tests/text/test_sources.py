"""What is read from files, and what is said of files that can't be read. Nothing may be written then."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from sixfold.config.schema import Data, Files
from sixfold.text import sources
from sixfold.text.sources import pair_sources, text_sources
from tests.support.by_kind import prepare
from tests.support.stand_ins import pairs, text, write


def read(train: Any, **data: Any) -> list[tuple[str, str]]:
    return [pair for source in pair_sources(Data(train=train, **data), "train") for pair in source.read()]


def read_text(train: Any, **data: Any) -> list[tuple[str, bool]]:
    return [found for source in text_sources(Data(train=train, **data), "train") for found in source.read()]


def test_lines_end_at_line_feeds_only(tmp_path):
    """U+2028 is text; a carriage return before \\n and a byte order mark are not; the last end may lack."""
    write(
        tmp_path / "a.en",
        b"\xef\xbb\xbfone\r\n two \xe2\x80\xa8\x0b\x0c\x85\n".replace(b"\x85", b"\xc2\x85") + b"three",
    )
    write(tmp_path / "a.de", "eins\nzwei\ndrei\n")
    expected = [("one", "eins"), (" two \u2028\x0b\x0c\x85", "zwei"), ("three", "drei")]
    assert read(str(tmp_path / "a"), source="en", target="de") == expected


@pytest.mark.parametrize("end", ["", ".gz"])
def test_all_forms_say_the_same(tmp_path, end):
    expected = [("a b", "x"), ("c", "y z")]
    prefix = str(tmp_path / "p")
    en, de = write(tmp_path / f"p.en{end}", "a b\nc\n"), write(tmp_path / f"p.de{end}", "x\ny z")
    assert read(prefix, source="en", target="de") == expected
    assert read(Files(source=en, target=de)) == expected
    assert read(write(tmp_path / f"p.tsv{end}", "a b\tx\nc\ty z\n")) == expected
    assert read(write(tmp_path / f"q.tsv{end}", "0\tx\ta b\n1\ty z\tc\n"), source="3", target="2") == expected
    assert read(write(tmp_path / f"h.tsv{end}", "de\ten\r\nx\ta b\ny z\tc\n"), source="en", target="de") == expected
    records = '{"source": "a b", "target": "x"}\n{"target": "y z", "source": "c"}'
    assert read(write(tmp_path / f"r.jsonl{end}", records)) == expected
    both = [Files(source=en, target=de), Files(path=str(tmp_path / f"p.tsv{end}"), weight=2)]
    assert read(both) == expected * 2


def test_embedded_examples_are_a_source_like_files():
    (source,) = pair_sources(Data(train="pronounce:valid"), "train")
    words = dict(source.read())
    assert len(words) > 1000
    assert all(phones.split() for phones in words.values())
    assert [*source.hashes()] == ["pronounce:valid"]


def test_a_plain_text_is_one_document_and_a_record_is_one(tmp_path):
    plain, records = (
        write(tmp_path / "t.txt", "one\n\ntwo"),
        write(tmp_path / "t.jsonl", '{"text": "a\\nb"}\n{"text": "c"}'),
    )
    assert read_text(plain) == [("one\n", False), ("\n", False), ("two", False), ("", True)]
    assert read_text(records) == [("a\nb", False), ("", True), ("c", False), ("", True)]


def test_a_line_of_any_length_comes_in_stretches(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_LONGEST_STRETCH", 5)
    stretches = [found for found, _ in read_text(write(tmp_path / "t.txt", "ab cd ef ghijklmnop q\n"))]
    assert stretches == ["ab", " cd", " ef", " ghij", "klmno", "p q\n", ""]


GOOD = "a\tb\n"


@pytest.mark.parametrize(
    ("name", "content", "settings", "words"),
    [
        ("x.tsv", b"a\tb\nc\xff\td\n", {}, ["x.tsv, line 2", "0xff", "column 2", "UTF-8"]),
        ("x.tsv", b"a\tb\nc\xed\xa0\x80\td\n", {}, ["line 2", "UTF-8"]),
        ("x.tsv", "", {}, ["x.tsv is empty"]),
        ("x.tsv", b"\xef\xbb\xbf", {}, ["x.tsv is empty"]),
        ("x.tsv.gz", "", {}, ["x.tsv.gz is empty"]),
        ("x.tsv", "a\tb\nc\n", {}, ["x.tsv, line 2", "no column 2", "only 1"]),
        ("x.tsv", GOOD, {"source": "0"}, ["counted from 1"]),
        ("x.tsv", "en\tfr\na\tb\n", {"source": "en", "target": "de"}, ["no column named 'de'", "en, fr"]),
        ("x.tsv", "en\tde\n", {"source": "en", "target": "de"}, ["has only a first line"]),
        ("x.tsv", "\t\n\n", {}, ["each of 2 pairs has an empty side"]),
        ("x.tsv", "aaaa\tb\n", {"max_length": 3}, ["no pair remains", "1 pairs", "3 tokens", "data.max_length"]),
        ("x.jsonl", '{"source": "a", "target": "b"}\n{"source": "a",\n', {}, ["x.jsonl, line 2", "not JSON"]),
        ("x.jsonl", "[" * 100_000, {}, ["line 1", "not JSON"]),
        ("x.jsonl", "[1]\n", {}, ["line 1", "list"]),
        ("x.jsonl", '{"source": "a", "de": "b"}\n', {}, ["line 1", "no field 'target'", "source, de"]),
        ("x.jsonl", '{"source": "a", "target": 3}\n', {}, ["line 1", "'target'", "int"]),
        ("x.jsonl", '{"source": "a", "target": "\\ud800"}\n', {}, ["line 1", "'target'", "surrogate"]),
    ],
)
def test_a_bad_file_is_named_before_anything_is_written(tmp_path, name, content, settings, words):
    config = pairs(write(tmp_path / name, content), **settings)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError) as raised:
        prepare(config, tmp_path / "data")
    assert [word for word in words if word not in str(raised.value)] == []
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("part", ["valid", "test"])
def test_the_other_parts_are_checked_as_well(tmp_path, part):
    good, bad = write(tmp_path / "a.tsv", GOOD), write(tmp_path / "b.tsv", b"a\tb\n\xff\tb\n")
    with pytest.raises(ValueError, match=r"b\.tsv, line 2"):
        prepare(pairs(good, **{part: bad}), tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("left", "right", "counts"), [(3, 5, "3 lines.*5"), (5, 3, "5 lines.*3"), (4, 3, "4 lines.*3")]
)
def test_counts_that_differ_are_told(tmp_path, left, right, counts):
    prefix = str(tmp_path / "a")
    write(tmp_path / "a.en", "x\n" * left)
    write(tmp_path / "a.de", "x\n" * right)
    with pytest.raises(ValueError, match=rf"a\.en has {counts}"):
        read(prefix, source="en", target="de")


def test_a_damaged_gzip_is_told(tmp_path):
    path = tmp_path / "a.tsv.gz"
    whole = gzip.compress("".join(f"{i}\t{i * 7919}\n" for i in range(20_000)).encode())
    for content in (whole[: len(whole) // 2], whole[:-100] + bytes(100), b"a\tb\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.tsv\.gz is damaged"):
            read(str(path))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train": "none.tsv"}, ["data.train", "none.tsv"]),
        ({"train": "none", "source": "en", "target": "de"}, ["'none.en'", "'none.en.gz'"]),
        ({"train": "none"}, ["'none'", "data.source and data.target"]),
        ({"train": "pronounce:dev"}, ["pronounce:dev", "pronounce:valid"]),
        ({"train": []}, ["empty list"]),
        ({"train": Files(source="a")}, ["data.train", "path", "source"]),
        ({"train": Files(path="a", source="b", target="c")}, ["data.train", "path", "source"]),
        ({"train": "pronounce:train", "valid": Files(path="pronounce:valid", weight=2)}, ["data.valid", "weight 2"]),
        ({"train": None}, ["data.train"]),
    ],
)
def test_what_is_not_there_is_named(tmp_path, monkeypatch, settings, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as raised:
        prepare(pairs(**settings), Path("data"))
    assert [word for word in words if word not in str(raised.value)] == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train": "pronounce:train"}, "pairs"),
        ({"train": Files(source="a", target="b")}, "pairs"),
        ({"train": "none.txt"}, "none.txt"),
    ],
)
def test_a_language_model_needs_text(tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        prepare(text(**settings), tmp_path / "data")
