"""A corpus is read twice, whatever is made of it: to check it and train tokenizers, and to tokenise it."""

from __future__ import annotations

import builtins
import hashlib
import io
import os
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from sixfold.config.schema import TokenizerKinds, Vocabularies
from sixfold.core.ids import EOS
from sixfold.text import file_kinds, preparation, vocabulary
from sixfold.text.forms import PAIRS
from sixfold.text.tokenizer import KINDS, Tokenizers
from sixfold.text.vocabulary import train_tokenizer
from tests.support.by_kind import data_hashes, prepare
from tests.support.stand_ins import pairs, text, write

WORDS = ["the", "cat", "sat", "on", "a", "mat", "über", "den", "Bäumen", "猫", "कुत्ता"]
ROWS = [(f"{WORDS[i % 5]} {WORDS[i % 7]}", f"{WORDS[i % 11]} {WORDS[i % 3]} {WORDS[i % 4]}") for i in range(200)]


def table(rows):
    return "".join(f"{source}\t{target}\n" for source, target in rows)


def parallel(folder, **data):
    """Two files to train on, a table to validate, a packed table to test."""
    for side, end in enumerate(("en", "de")):
        write(folder / f"train.{end}", "".join(f"{row[side]}\n" for row in ROWS))
    train = [{"source": str(folder / "train.en"), "target": str(folder / "train.de")}]
    valid, test = write(folder / "valid.tsv", table(ROWS[:9])), write(folder / "test.tsv.gz", table(ROWS[9:20]))
    return pairs(train, valid=valid, test=test, **data)


def plain(folder, **data):
    """A text and packed records to train on, records to validate, a text to test."""
    records = "".join(f'{{"text": "{source}"}}\n' for source, _ in ROWS)
    train = [write(folder / "train.txt", table(ROWS)), write(folder / "train.jsonl.gz", records)]
    valid, test = write(folder / "valid.jsonl", records[:400].rpartition("\n")[0]), write(folder / "test.txt", "a b\n")
    return text(train, valid=valid, test=test, **{"tokenizer": "bpe", "vocabulary": 300, **data})


@pytest.fixture
def opened(monkeypatch):
    """How often each file is opened; a look at no more than the first line does not count."""
    counts: Counter[str] = Counter()
    true_open = builtins.open

    def counting(file, *args, **settings):
        counts[str(file)] += 1
        return true_open(file, *args, **settings)

    monkeypatch.setattr(builtins, "open", counting)
    monkeypatch.setattr(io, "open", counting)
    monkeypatch.setattr(file_kinds, "_first_line", lambda path: b"")
    return counts


SEPARATE = {"tokenizer": TokenizerKinds(source="characters", target="words")}
TWO_SIZES = {"tokenizer": "bpe", "vocabulary": Vocabularies(source=300, target=310)}
FORMS = [
    (parallel, {"tokenizer": "unigram", "vocabulary": 300}),
    (parallel, SEPARATE),
    (parallel, TWO_SIZES),
    (plain, {}),
]


@pytest.mark.parametrize("given", [False, True], ids=["trained", "given"])
@pytest.mark.parametrize(("form", "data"), FORMS, ids=["joint", "separate", "two sizes", "plain"])
def test_each_file_is_opened_twice_and_a_test_file_once(tmp_path, opened, form, data, given):
    config = form(tmp_path, **data)
    tokenizers = prepare(config, tmp_path / "before").tokenizers if given else None
    opened.clear()
    prepare(config, tmp_path / "data", tokenizers)
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert len(files) == 4
    for path in files:
        assert opened[str(path)] == (1 if path.name.startswith("test") else 2), path


@pytest.mark.parametrize(("form", "data"), [FORMS[0], FORMS[-1]], ids=["pairs", "plain"])
def test_the_hashes_are_those_of_the_stored_bytes(tmp_path, form, data):
    config = form(tmp_path, **data)
    prepared = prepare(config, tmp_path / "data")
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert prepared.hashes == {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert [*prepared.hashes] == [*data_hashes(config)]


def by_hand(kinds, sizes):
    """The tokenizers of the pairs, from all texts at once."""
    if len(kinds) == 1:
        joint = train_tokenizer(kinds[0], chain.from_iterable(ROWS), sizes[0])
        return Tokenizers(joint, joint)
    return Tokenizers(*(train_tokenizer(kinds[side], [row[side] for row in ROWS], sizes[side]) for side in (0, 1)))


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [
        *(([kind], [320 if kind in ("bpe", "unigram") else None]) for kind in KINDS),
        (["bpe", "bpe"], [300, 310]),
        (["unigram", "characters"], [300, 300]),
        (["words", "bpe"], [None, None]),
    ],
    ids=str,
)
def test_tokenizers_and_arrays_are_those_of_the_texts_in_a_list(tmp_path, monkeypatch, kinds, sizes):
    monkeypatch.setattr(preparation, "_CHUNK", 7)
    monkeypatch.setattr(vocabulary, "_MOST_TEXTS", 150)
    one = len(kinds) == 1
    tokenizer = kinds[0] if one else TokenizerKinds(source=kinds[0], target=kinds[1])
    size = sizes[0] if one or sizes[0] is None else Vocabularies(source=sizes[0], target=sizes[1])
    config = parallel(tmp_path, tokenizer=tokenizer, vocabulary=size)
    prepared, expected = prepare(config, tmp_path / "data"), by_hand(kinds, sizes)
    assert prepared.tokenizers.joint == one
    assert [tokenizer.text for tokenizer in prepared.tokenizers] == [tokenizer.text for tokenizer in expected]
    for examples, rows in ((prepared.train, ROWS), (prepared.valid, ROWS[:9])):
        assert [row.tolist() for row in examples.source] == expected.source.encode_batch(row[0] for row in rows)
        assert [row.tolist() for row in examples.target] == expected.target.encode_batch(row[1] for row in rows)
    assert prepared.references == PAIRS.references(config.data, "valid")


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokenizer_and_stream_of_a_plain_text_are_those_of_its_lines(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(preparation, "_CHUNK", 7)
    monkeypatch.setattr(vocabulary, "_MOST_TEXTS", 150)
    lines = [f"{source} {target}\n" for source, target in ROWS]
    size = 300 if kind in ("bpe", "unigram") else None
    config = text(write(tmp_path / "train.txt", "".join(lines)), tokenizer=kind, vocabulary=size, held_out=0)
    if kind in ("words", "symbols"):
        lines = [f"{line[:-1]} \n" for line in lines]
    prepared, expected = prepare(config, tmp_path / "data"), train_tokenizer(kind, lines, size)
    assert prepared.tokenizers.target.text == expected.text
    stream = [*chain.from_iterable(expected.encode_batch(lines)), EOS]
    assert [*chain.from_iterable(row.tolist() for row in prepared.train.target)] == stream


@pytest.mark.parametrize(("name", "when"), [("train.de", "checking valid"), ("valid.tsv", "tokenising train")])
def test_a_file_that_changes_between_the_passes_is_an_error_and_nothing_is_left(tmp_path, name, when):
    config, path = parallel(tmp_path), tmp_path / name
    before = sorted(tmp_path.iterdir())

    def change(what, done, total):
        if what == when:
            status = path.stat()
            path.write_bytes(path.read_bytes().replace(b"cat", b"dog"))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    with pytest.raises(ValueError, match=rf"{name} has changed since it was first read"):
        prepare(config, tmp_path / "runs" / "data", progress=change)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("form", [parallel, plain])
def test_an_error_in_the_last_line_of_the_last_file_leaves_nothing(tmp_path, form):
    config = form(tmp_path)
    path = Path(config.data.test)
    write(path, table(ROWS).encode() + b"the end\xff\n")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match=rf"{path.name}, line 201: byte 0xff at column 8 is not UTF-8"):
        prepare(config, tmp_path / "runs" / "data")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(("form", "data"), [FORMS[1], FORMS[-1]], ids=["separate", "plain"])
def test_progress_tells_each_stage_once(tmp_path, form, data):
    told: dict[str, list[tuple[int, int | None]]] = {}
    report = prepare(
        form(tmp_path, **data), tmp_path / "data", progress=lambda what, *far: told.setdefault(what, []).append(far)
    ).report
    assert [*told] == [
        *(f"checking {part}" for part in ("train", "valid", "test")),
        "training tokenizers",
        *(f"tokenising {part}" for part in ("train", "valid")),
    ]
    number = 2 if data else 1
    assert told["training tokenizers"] == [(done, number) for done in range(number)]
    for part in ("train", "valid"):
        lines = report.splits[part].lines
        assert told[f"checking {part}"][-1] == (lines, None)
        assert told[f"tokenising {part}"][-1] == (lines, lines)
