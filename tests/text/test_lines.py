"""The one reader of lines: marks, packed files, bytes that are no text, and lines that do not end."""

import gzip
import io
import os
import subprocess
import sys

import pytest

from sixfold.cli import lines as command_line
from sixfold.config.schema import Data
from sixfold.text import lines, sources
from sixfold.text.lines import read_lines, read_parts

TOO_LONG = r", line 2 has more than 20 bytes; break it into shorter lines"


@pytest.fixture
def short(monkeypatch):
    """Lines may have 20 bytes, and texts are read in parts of 8."""
    monkeypatch.setattr(lines, "LONGEST_LINE", 20)
    monkeypatch.setattr(lines, "_PART", 8)
    monkeypatch.setattr(command_line, "_CHUNK", 8)


def written(path, content):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_line_has_at_most_as_many_bytes(tmp_path, short, name, mark):
    fits = "x" * 18 + "ä"  # 20 bytes
    path = written(tmp_path / name, mark + f"{fits}\n\n{fits}".encode())
    assert list(read_lines(path)) == [f"{fits}\n", "\n", fits]
    first = read_lines(written(tmp_path / name, mark + f"{fits}y\n".encode()))
    with pytest.raises(ValueError, match=r", line 1 has more than 20 bytes"):
        next(first)
    second = read_lines(written(tmp_path / name, mark + f"{fits}\n{fits}y".encode()))
    assert next(second) == f"{fits}\n"
    with pytest.raises(ValueError, match=rf"{name}{TOO_LONG}"):
        next(second)


def test_all_who_read_lines_have_the_bound(tmp_path, short, monkeypatch):
    content = b"x\n" + b"y" * 21 + b"\n"
    text = written(tmp_path / "a.txt", content)
    table = written(tmp_path / "a.tsv", b"x\ty\n" + content)
    records = written(tmp_path / "a.jsonl", b'{"text": ""}\n' + content)
    pairs = sources.pair_sources(Data(train=str(table)), "train")[0]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    for reader in (
        command_line.read_lines(text),
        command_line.read_lines(None),
        command_line.read_beside(text, "terms"),
        sources.read_lines(text),
        sources.read_parallel(text, text),
    ):
        with pytest.raises(ValueError, match=TOO_LONG):
            list(reader)
    for reader in (pairs.read(), sources.text_sources(Data(train=str(records)), "train")[0].read()):
        with pytest.raises(ValueError, match=r"a\.(tsv|jsonl), line [23]"):
            list(reader)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("over", [1, 8, 1000])
def test_standard_input_has_the_bound(short, monkeypatch, mark, over):
    def given(content):
        reading, writing = os.pipe()
        os.write(writing, content)
        os.close(writing)
        with os.fdopen(reading) as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            return [line for line in command_line.read_lines(None) if line is not None]

    assert given(mark + b"a\n" + b"x" * 20 + b"\n" + b"y" * 20) == ["a", "x" * 20, "y" * 20]
    assert given(mark + b"x" * 20 + b"\n\ny") == ["x" * 20, "", "y"]
    with pytest.raises(ValueError, match=r"standard input, line 1 has more than 20 bytes"):
        given(mark + b"x" * (20 + over) + b"\nnext\n")
    with pytest.raises(ValueError, match=rf"standard input{TOO_LONG}"):
        given(mark + b"a\n" + b"x" * (20 + over))


def test_plain_text_may_be_a_single_line_of_any_length(tmp_path, short, monkeypatch):
    monkeypatch.setattr(sources, "_LONGEST_STRETCH", 5)
    for text in (
        "ab cd ef ghijklmnop q\n",
        "ä" * 33,
        "x",
        "a\n\nb",
        "ab cd ef ghijklmnop qrstu v\nnext line\n",
        "\n" * 9,
    ):
        path = written(tmp_path / "a.txt", text.encode())
        assert "".join(read_parts(path)) == text
        whole = [stretch for line in text.splitlines(keepends=True) for stretch in sources._stretches(line)]
        found = list(sources.text_sources(Data(train=str(path)), "train")[0].read())
        assert found == [*((stretch, False) for stretch in whole), ("", True)]


@pytest.mark.parametrize("place", [0, 5, 7, 8, 9, 17, 30])
def test_both_readers_name_the_same_byte(tmp_path, monkeypatch, place):
    monkeypatch.setattr(lines, "_PART", 8)
    text = bytearray(b"ok\n" + "ä".encode() * 20 + b"\n")
    text[3 + place] = 0xFF
    path = written(tmp_path / "a.txt", bytes(text))
    said = []
    for read in (read_lines, read_parts):
        with pytest.raises(ValueError, match=r"a\.txt, line 2: byte 0x") as error:
            list(read(path))
        said.append(str(error.value))
    assert said[0] == said[1]


def test_a_text_that_ends_within_a_character_is_not_utf8(tmp_path):
    path = written(tmp_path / "a.txt", b"ok\nab\xc3")
    for read in (read_lines, read_parts):
        with pytest.raises(ValueError, match=r"line 2: byte 0xc3 at column 3 is not UTF-8 \(unexpected end of data\)"):
            list(read(path))


def test_what_is_damaged_or_not_there_is_said(tmp_path):
    whole = gzip.compress(b"one\ntwo\n" * 1000)
    (tmp_path / "cut.gz").write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=r"cut\.gz is damaged after line \d+: Compressed file ended"):
        list(read_lines(tmp_path / "cut.gz"))
    with pytest.raises(ValueError, match=r"no\.txt can't be read: No such file"):
        list(read_lines(tmp_path / "no.txt"))


READ = """
import resource, sys
from pathlib import Path
from sixfold.text.lines import read_lines
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    list(read_lines(Path(sys.argv[1])))
except ValueError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_small_file_that_unpacks_to_a_line_of_a_gigabyte_takes_little_memory(tmp_path):
    path = tmp_path / "bomb.gz"
    block = gzip.compress(b"a" * (1 << 24), 1)
    path.write_bytes(block * 64)  # 1 GiB of a single line in about 5 MB
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True, env=environment
    )
    said, kilobytes = found.stdout.splitlines()
    assert said == f"{path}, line 1 has more than 16,777,216 bytes; break it into shorter lines"
    assert int(kilobytes) < 150_000
