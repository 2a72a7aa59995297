"""Files that are hashed while they are read."""

from __future__ import annotations

import gzip
import hashlib
import os

import pytest

from sixfold.text import hashed_files
from sixfold.text.hashed_files import HashedFiles
from sixfold.text.lines import read_lines, read_parts
from tests.support.stand_ins import write

LINES = [f"line {number}\n" for number in range(1000)]


@pytest.mark.parametrize("block", [1, 7, 1 << 17])
@pytest.mark.parametrize("read", [read_lines, read_parts])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_the_hash_is_that_of_the_stored_bytes(tmp_path, monkeypatch, name, read, block):
    monkeypatch.setattr(hashed_files, "_BLOCK", block)
    path, files = tmp_path / name, HashedFiles()
    write(path, "".join(LINES))
    assert [*read(path, files.open)] == LINES == [*read(path)]
    assert files.hash_of(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_packed_files_that_are_joined_or_padded_are_hashed_to_the_end(tmp_path):
    path, files = tmp_path / "a.gz", HashedFiles()
    path.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n") + bytes(100_000))
    assert [*read_lines(path, files.open)] == ["one\n", "two\n"]
    assert files.hash_of(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_has_no_hash_before_its_end(tmp_path):
    path, files = tmp_path / "a.txt", HashedFiles()
    write(path, "one\ntwo\n")
    lines = read_lines(path, files.open)
    assert [next(lines), next(lines)] == ["one\n", "two\n"]
    with pytest.raises(AssertionError, match="not been read to its end"):
        files.hash_of(path)
    assert [*lines] == []
    assert len(files.hash_of(path)) == 64


def test_a_file_that_is_read_again_must_be_the_same(tmp_path):
    path, files = tmp_path / "a.txt", HashedFiles()
    write(path, "one\ntwo\n")
    for _ in range(3):
        assert [*read_lines(path, files.open)] == ["one\n", "two\n"]
    before, first = path.stat(), files.hash_of(path)
    write(path, "one\ntwx\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ValueError, match=r"a\.txt has changed since it was first read"):
        [*read_lines(path, files.open)]
    assert files.hash_of(path) == first


def test_the_file_is_closed_with_its_reader(tmp_path):
    write(tmp_path / "a.txt", "one\n")
    descriptors = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else pytest.skip("no /proc")
    reader = HashedFiles().open(tmp_path / "a.txt")
    assert len(os.listdir("/proc/self/fd")) == len(descriptors) + 1
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


def test_a_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a named pipe, not a regular file"):
        HashedFiles().open(tmp_path / "pipe")
