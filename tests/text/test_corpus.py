"""From files to arrays and back: what is kept, what is counted, what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from sixfold.config.schema import Files, TokenizerKinds, Vocabularies
from sixfold.core.ids import EOS, UNK
from sixfold.disk.hashes import sealed
from sixfold.text import preparation
from sixfold.text.corpus import open_prepared
from sixfold.text.forms import PAIRS, PLAIN_TEXT
from sixfold.text.preparation import Reference
from sixfold.text.report import OUTLIER_RULE, PartReport, Report, count_outliers
from tests.support.by_kind import data_hashes, prepare
from tests.support.stand_ins import pairs, text, write

TRAIN = "ab\tx\n\ty\nab\tx\n  \tz\nab\tw\nabcdef\tx\nc\txyzxyz\nd\tx y"  # two with an empty side, two over-long


def made(tmp_path, **data):
    settings = {"valid": write(tmp_path / "v.tsv", "q\tx\nab\ty\nq\tz\nq\tx\nr\t\n"), "max_length": 3, **data}
    return pairs(write(tmp_path / "t.tsv", TRAIN), **settings)


def test_the_arrays_hold_the_text(tmp_path):
    prepared = prepare(made(tmp_path), tmp_path / "data")
    source, target = prepared.tokenizers
    assert prepared.tokenizers.joint
    assert prepared.train.source is not None
    rows = [
        (source.decode(s), target.decode(t)) for s, t in zip(prepared.train.source, prepared.train.target, strict=True)
    ]
    assert rows == [("ab", "x"), ("ab", "x"), ("ab", "w"), ("d", "x y")]
    assert prepared.train.target.ids.dtype == np.uint16
    assert list(prepared.train.target.lengths) == [1, 1, 1, 3]


def test_the_report_counts(tmp_path):
    config = made(tmp_path, test=write(tmp_path / "e.tsv", "ab\tx\nc\ty\nnew\tz\n"))
    report = prepare(config, tmp_path / "data").report
    train, valid, test = (report.parts[part] for part in ("train", "valid", "test"))
    assert (train.lines, train.empty, train.over_long, train.rows, train.duplicates) == (8, 2, 2, 4, 1)
    assert (train.source_tokens, train.target_tokens, train.in_training) == (7, 6, None)
    assert (valid.lines, valid.empty, valid.rows, valid.duplicates, valid.in_training) == (5, 1, 4, 1, 1)
    assert (test.lines, test.in_training, test.rows) == (3, 2, None)  # "ab" and "c"; not tokenised
    assert Report.from_json(json.loads(json.dumps(report.json()))) == report
    assert report.lines() == [
        "train: 8 pairs, 4 of them kept: 7 source and 6 target tokens",
        "       dropped: 2 with an empty side, 2 of more than 3 tokens",
        "       kept, but worth a look: 1 duplicate",
        "valid: 5 pairs, 4 of them kept: 5 source and 4 target tokens",
        "       dropped: 1 with an empty side",
        "       kept, but worth a look: 1 duplicate, 1 source also in training",
        "test: 3 pairs",
        "      kept, but worth a look: 2 sources also in training",
    ]


def test_the_report_explains_outliers_where_there_are_some_in_lines_that_fit():
    counts = PartReport(lines=10**9, rows=10**9, source_tokens=10**11, target_tokens=10**11)
    assert len(Report({"train": counts}, 256).lines()) == 1
    lines = Report({"train": replace(counts, outliers=3_000_000, empty=10**8, over_long=10**8)}, 256).lines()
    assert lines[2] == f"       kept, but of unlikely lengths: 3,000,000 pairs ({OUTLIER_RULE})"
    assert max(map(len, lines)) <= 100


def test_outliers_are_told_from_the_corpus_ratio():
    """Twice as many target tokens is usual here: r = 2, so s = 10 leads to expect 20, and 3·20 + 10 = 70."""
    source = np.array([10] * 1000)
    target = np.array([20] * 998 + [70, 71])
    r = target.sum() / source.sum()
    assert 2 < r < 2.02
    assert count_outliers(source, target) == sum(t > 3 * r * 10 + 10 for t in (70, 71))
    assert count_outliers(source, np.array([20] * 999 + [1000])) == 1
    assert count_outliers(np.array([10] * 999 + [1000]), np.array([20] * 1000)) == 1
    assert count_outliers(np.array([1, 1]), np.array([1, 9])) == 0  # short ones say nothing


def test_equal_sources_become_one_reference(tmp_path):
    config = made(tmp_path)
    prepared = prepare(config, tmp_path / "data")
    assert prepared.references == [Reference("q", ("x", "z")), Reference("ab", ("y",))]
    assert PAIRS.references(config.data, "valid") == prepared.references
    assert PLAIN_TEXT.references(config.data, "valid") == []
    assert PAIRS.references(config.data, "test") == []


def test_opened_again_it_is_the_same(tmp_path):
    prepared = prepare(made(tmp_path), tmp_path / "data")
    again = open_prepared(tmp_path / "data", prepared.tokenizers)
    assert (again.references, again.report, again.hashes) == (prepared.references, prepared.report, prepared.hashes)
    assert again.train.groups == prepared.train.groups
    assert again.valid is not None
    assert prepared.valid is not None
    assert [list(row) for row in again.valid.target] == [list(row) for row in prepared.valid.target]


def test_hashes_are_of_the_bytes_as_they_are_now(tmp_path):
    config = made(tmp_path)
    hashes = prepare(config, tmp_path / "data").hashes
    assert hashes[str(tmp_path / "t.tsv")] == hashlib.sha256(TRAIN.encode()).hexdigest()
    assert data_hashes(config) == hashes
    write(tmp_path / "v.tsv", "q\tx\n")
    changed = data_hashes(config)
    assert [name for name in hashes if changed[name] != hashes[name]] == [str(tmp_path / "v.tsv")]


def test_other_tokenizers_are_refused(tmp_path):
    prepared = prepare(made(tmp_path), tmp_path / "data")
    other = prepare(made(tmp_path, tokenizer="bytes"), tmp_path / "other").tokenizers
    with pytest.raises(ValueError, match="other tokenizers"):
        open_prepared(tmp_path / "data", other)
    kept = prepare(made(tmp_path), tmp_path / "again", prepared.tokenizers)
    assert kept.tokenizers is prepared.tokenizers


@pytest.mark.parametrize(
    "name", ["train.source.ids", "train.target.offsets", "valid.target.ids", "references.jsonl", "index.json"]
)
def test_damaged_arrays_are_refused(tmp_path, name):
    prepared = prepare(made(tmp_path), tmp_path / "data")
    path = tmp_path / "data" / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        open_prepared(tmp_path / "data", prepared.tokenizers)
    path.unlink()
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        open_prepared(tmp_path / "data", prepared.tokenizers)


@pytest.mark.parametrize("change", [{"format": "other"}, {"arrays": {}}, {"arrays": {"train": 3}}, {"report": []}])
def test_a_damaged_index_is_refused(tmp_path, change):
    prepared = prepare(made(tmp_path), tmp_path / "data")
    path = tmp_path / "data" / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=r"index\.json"):
        open_prepared(tmp_path / "data", prepared.tokenizers)


def test_offsets_that_go_back_are_refused(tmp_path):
    prepared = prepare(made(tmp_path), tmp_path / "data")
    path = tmp_path / "data" / "train.target.offsets"
    offsets = np.fromfile(path, np.int64)
    offsets[[1, 2]] = offsets[[2, 1]]
    offsets.tofile(path)
    with pytest.raises(ValueError, match=r"train\.target\.offsets has changed since it was written"):
        open_prepared(tmp_path / "data", prepared.tokenizers)
    index = tmp_path / "data" / "index.json"
    known = json.loads(index.read_text())
    del known["arrays"]["train"]["target"]["hashes"]  # as early ones had none
    index.write_text(json.dumps(sealed(known)))
    with pytest.raises(ValueError, match="do not follow each other"):
        open_prepared(tmp_path / "data", prepared.tokenizers)


@pytest.mark.parametrize("name", ["train.source.ids", "valid.target.offsets", "references.jsonl", "index.json"])
def test_one_other_byte_is_noticed(tmp_path, name):
    prepared = prepare(made(tmp_path), tmp_path / "data")
    path = tmp_path / "data" / name
    text = path.read_bytes()
    path.write_bytes(text.replace(b"0", b"1", 1) if b"0" in text else text[:-2] + bytes([text[-2] ^ 1]) + text[-1:])
    with pytest.raises(ValueError, match=r"changed since it was written"):
        open_prepared(tmp_path / "data", prepared.tokenizers)


def test_what_was_there_stays_when_preparing_fails(tmp_path):
    prepared = prepare(made(tmp_path), tmp_path / "data")
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    with pytest.raises(ValueError, match="no pair remains"):
        prepare(made(tmp_path, max_length=1, valid=write(tmp_path / "long.tsv", "aa\tbb\n")), tmp_path / "data")
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(ValueError, match="holds no prepared data"):
        open_prepared(tmp_path / "data", prepared.tokenizers)


def test_tokenizers_are_trained_as_asked(tmp_path):
    two = prepare(
        made(tmp_path, tokenizer=TokenizerKinds(source="characters", target="symbols")), tmp_path / "a"
    ).tokenizers
    assert [tokenizer.kind for tokenizer in two] == ["characters", "symbols"]
    sizes = Vocabularies(source=262, target=263)
    split = prepare(made(tmp_path, tokenizer="bpe", vocabulary=sizes), tmp_path / "b").tokenizers
    assert not split.joint
    assert [len(tokenizer) for tokenizer in split] == [262, 263]


def test_large_vocabularies_take_four_bytes(tmp_path):
    words = " ".join(f"w{i}" for i in range(66_000))
    config = pairs(write(tmp_path / "t.tsv", f"{words}\tb\na\tw65999\n"), tokenizer="symbols", max_length=100_000)
    prepared = prepare(config, tmp_path / "data")
    assert prepared.train.target.ids.dtype == np.uint32
    assert prepared.tokenizers.target.decode(prepared.train.target[1]) == "w65999"


def test_chunks_change_nothing(tmp_path, monkeypatch):
    lines = "".join(f"{'ab' * (i % 7)}\t{'xy' * (i % 5)}\n" for i in range(100))
    config = pairs(write(tmp_path / "t.tsv", lines), max_length=10)
    whole = prepare(config, tmp_path / "whole")
    monkeypatch.setattr(preparation, "_CHUNK", 7)
    calls: list[tuple[str, int, int | None]] = []
    parts = prepare(config, tmp_path / "parts", progress=lambda *call: calls.append(call))
    for name in ("train.source.ids", "train.source.offsets", "train.target.ids", "train.target.offsets"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    assert whole.report == parts.report
    assert calls[-1] == ("tokenising train", 100, 100)
    assert ("checking train", 98, None) in calls


def test_weights_stay_with_their_rows(tmp_path):
    one, two = write(tmp_path / "a.tsv", "a\tb\nlonglong\tb\nc\td\n"), write(tmp_path / "b.tsv", "e\tf\n")
    prepared = prepare(pairs([Files(path=one, weight=0.5), two], max_length=5), tmp_path / "data")
    assert prepared.train.groups == ((2, 0.5), (1, 1.0))


def windows(config, folder):
    prepared = prepare(config, folder)
    return [list(row) for row in prepared.train.target], prepared


def test_a_text_becomes_windows(tmp_path):
    """Bytes are 5 + b; the stream of the file is cut every four tokens, and closed by EOS."""
    rows, prepared = windows(text(write(tmp_path / "t.txt", "ab\n\nc")), tmp_path / "data")
    letters = [5 + byte for byte in b"ab\n\nc"]
    assert rows == [letters[:4], [letters[4], EOS]]
    part = prepared.report.parts["train"]
    assert (part.lines, part.documents, part.rows, part.target_tokens) == (3, 1, 2, 6)
    assert prepared.references == []
    assert "6 tokens in 2 windows of at most 4" in "\n".join(prepared.report.lines())


def test_documents_are_closed_and_empty_ones_left_out(tmp_path):
    records = '{"text": "ab"}\n{"text": " "}\n{"text": "c"}\n'
    rows, prepared = windows(text(write(tmp_path / "t.jsonl", records)), tmp_path / "data")
    assert [token for row in rows for token in row] == [5 + ord("a"), 5 + ord("b"), EOS, 5 + ord("c"), EOS]
    assert (prepared.report.parts["train"].documents, prepared.report.parts["train"].empty) == (2, 1)


def test_a_stream_goes_on_over_files_of_equal_weight(tmp_path):
    a, b, c = (write(tmp_path / f"{name}.txt", name * 2) for name in "abc")
    rows, prepared = windows(text([a, b, Files(path=c, weight=2)]), tmp_path / "data")
    assert [len(row) for row in rows] == [4, 2, 3]
    assert prepared.train.groups == ((2, 1.0), (1, 2.0))


def test_lines_of_a_text_that_training_has_too(tmp_path):
    train, valid = write(tmp_path / "t.txt", "one\n\ntwo\n\none\n"), write(tmp_path / "v.txt", "three\n\ntwo")
    report = prepare(text(train, valid=valid), tmp_path / "data").report
    assert (report.parts["train"].duplicates, report.parts["valid"].in_training) == (1, 1)


def test_the_end_of_a_line_is_a_word_of_its_own(tmp_path):
    rows, prepared = windows(text(write(tmp_path / "t.txt", "a b\nb a\n"), tokenizer="symbols"), tmp_path / "data")
    stream = [token for row in rows for token in row]
    a, b, end = stream[:3]
    assert stream == [a, b, end, b, a, end, EOS]
    assert UNK not in stream
    assert prepared.tokenizers.target.encode("a") == [a]


def test_a_language_model_has_one_tokenizer(tmp_path):
    config = text(write(tmp_path / "t.txt", "a"), tokenizer=TokenizerKinds(source="bytes", target="bytes"))
    with pytest.raises(ValueError, match=r"one data\.tokenizer"):
        prepare(config, tmp_path / "data")
