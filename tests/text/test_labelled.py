"""Texts with labels: what is checked, what is reported, and what lies on disk."""

from __future__ import annotations

import builtins
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sixfold.config.schema import Data, Files, TokenizerKinds
from sixfold.text.arrays import open_examples
from sixfold.text.labelled import LabelledText, label_references
from sixfold.text.report import Report, SplitReport
from sixfold.text.tables import Row
from tests.support.stand_ins import write

TRAIN = "text\tlabel\nab ba\tpos\n\tneg\nb\tneg\nabba\tpos\n \t\na a\tneutral\nc\tneutral\n"
VALID = "text\tlabel\nb\tneg\nbb\tpos\n"


def ignore(*_):
    pass


def prepared(tmp_path, train=TRAIN, valid=VALID, progress=ignore, **data):
    files = {part: write(tmp_path / f"{part}.tsv", text) for part, text in (("train", train), ("valid", valid)) if text}
    return LabelledText(Data(**{"tokenizer": "characters", **files, **data}), progress)


def test_labels_are_found_in_training_and_sorted_by_name(tmp_path):
    text = prepared(tmp_path)
    counts, _ = text.check()
    assert text.labels == ("neg", "neutral", "pos")
    assert counts["train"] == SplitReport(lines=7, empty=2, classes=3, two_labels=0)
    assert counts["valid"] == SplitReport(lines=2, in_training=1, classes=2, two_labels=0)


def test_rows_on_disk_are_the_tokens_of_each_text_and_the_index_of_its_label(tmp_path):
    text = prepared(tmp_path, max_length=4)
    counts, tokenizers = text.check()
    arrays, report = text.encode("train", counts["train"], tokenizers, tmp_path)
    examples = open_examples(tmp_path, "train", json.loads(json.dumps(arrays)))
    expected = [Row("ab ba", "pos", 2), Row("b", "neg", 4), Row("abba", "pos", 5), Row("a a", "neutral", 7)]
    expected += [Row("c", "neutral", 8)]
    references = label_references(text.data, "train")
    assert references == [(row.text, (row.label,)) for row in expected]
    assert [tokenizers.source.decode(row) for row in examples.target] == ["ab b", "b", "abba", "a a", "c"]
    assert [text.labels[label] for label in examples.columns["label"]] == [row.label for row in expected]
    assert (report.rows, report.cut, report.empty, report.target_tokens) == (5, 1, 2, 4 + 1 + 4 + 3 + 1)
    assert (examples.source, [tuple(group) for group in examples.groups]) == (None, [(5, 1.0)])


def test_each_file_of_a_list_has_its_weight(tmp_path):
    files = [write(tmp_path / "a.tsv", "text\tlabel\na\tx\nb\ty\n"), write(tmp_path / "b.csv", "class,text\nx,a\n")]
    text = LabelledText(Data(train=[files[0], Files(path=files[1], weight=3)], tokenizer="bytes"), ignore)
    counts, tokenizers = text.check()
    arrays, _ = text.encode("train", counts["train"], tokenizers, tmp_path)
    assert [tuple(group) for group in arrays["groups"]] == [(2, 1.0), (1, 3.0)]
    assert open_examples(tmp_path, "train", arrays).columns["label"].tolist() == [0, 1, 0]


@pytest.mark.parametrize("kind", ["bpe", "characters", "words"])
def test_each_file_is_read_twice_and_no_more(tmp_path, monkeypatch, kind):
    text = prepared(tmp_path, tokenizer=kind)
    read, really = Counter(), builtins.open

    def counting(file, *arguments, **keywords):
        opened = really(file, *arguments, **keywords)
        if Path(str(file)).suffix == ".tsv":
            read[Path(file).name] += 1
        return opened

    monkeypatch.setattr("sixfold.text.labelled.described_columns", lambda *_: "")  # which reads one line
    monkeypatch.setattr(builtins, "open", counting)
    counts, tokenizers = text.check()
    for part in ("train", "valid"):
        text.encode(part, counts[part], tokenizers, tmp_path)
    assert read == {"train.tsv": 2, "valid.tsv": 2}


def test_who_looks_on_hears_how_far_it_is(tmp_path):
    heard = []
    text = prepared(tmp_path, progress=lambda *news: heard.append(news))
    counts, tokenizers = text.check()
    text.encode("train", counts["train"], tokenizers, tmp_path)
    assert heard[:2] == [("checking train", 7, None), ("checking valid", 2, None)]
    assert heard[-1] == ("tokenising train", 7, 7)


@pytest.mark.parametrize(
    ("train", "valid", "words"),
    [
        ("text\tlabel\na\tx\nb\tx\n", "", ["each of 2 texts has the label 'x'", "at least two labels", "train.tsv"]),
        (TRAIN, "text\tlabel\nb\tneg\na\tnuetral\n", ["valid.tsv, line 3", "'nuetral'", "did you mean 'neutral'?"]),
        (
            TRAIN,
            "text\tlabel\nb\tzzz\n",
            ["valid.tsv, line 2", "'zzz' does not occur in training; there are 'neg', 'neutral'"],
        ),
        ("text\tlabel\n \tx\n\ty\n", "", ["each of 2 rows has an empty text", "train.tsv"]),
        (
            "".join(f"x\t{n}\n" for n in range(10)),
            "",
            ["each of 10 texts has a different label", "'0'", "data.target"],
        ),
        ("text\tlabel\na\tx\nb\n", "", ["train.tsv, line 3", "1 column,"]),
    ],
)
def test_what_can_not_be_learned_from_is_named(tmp_path, train, valid, words):
    text = prepared(tmp_path, train, valid)
    with pytest.raises(ValueError) as raised:
        text.check()
    assert [word for word in words if word not in str(raised.value)] == []


def test_labels_that_are_given_keep_their_order_and_bind_training_too(tmp_path):
    data = prepared(tmp_path).data
    text = LabelledText(data, ignore, labels=["pos", "neutral", "neg", "other"])
    _, tokenizers = prepared(tmp_path, tokenizer="bytes").check()
    arrays, _ = text.encode("valid", SplitReport(lines=0), tokenizers, tmp_path)  # as a score does it
    assert open_examples(tmp_path, "valid", arrays).columns["label"].tolist() == [2, 0]
    text.check()
    assert text.labels == ("pos", "neutral", "neg", "other")
    with pytest.raises(ValueError, match=r"train\.tsv, line 7: the label 'neutral' does not occur in training"):
        LabelledText(data, ignore, labels=["pos", "neg"]).check()


def test_the_same_text_with_two_labels_is_reported_and_kept(tmp_path):
    train = "text\tlabel\na\tx\nb\ty\na\tx\nc\ty\nb\tx\na\ty\nb\tz\na\tz\nc\tz\n"
    text = prepared(tmp_path, train, "text\tlabel\nd\tx\nd\ty\n")
    counts, _ = text.check()
    assert (counts["train"].two_labels, counts["train"].duplicates, counts["train"].lines) == (3, 1, 9)
    assert (counts["valid"].two_labels, counts["valid"].in_training) == (1, 0)
    train_tsv, valid_tsv = tmp_path / "train.tsv", tmp_path / "valid.tsv"
    first, second = (remark for remark in text.remarks if "more than one label" in remark)
    assert f"data.train: 3 texts occur with more than one label, such as {train_tsv}, line 3 ('y') and" in first
    assert f"{train_tsv}, line 6 ('x')" in first
    assert f"such as {valid_tsv}, line 2 ('x') and {valid_tsv}, line 3 ('y')" in second


def test_files_are_told_apart(tmp_path):
    files = [write(tmp_path / f"{n}.csv", f"text,label\na,x{n}\nb,y\n") for n in range(3)]
    text = LabelledText(Data(train=files, tokenizer="bytes", held_out=0), ignore)
    text.check()
    contradicted, single = (remark for remark in text.remarks if remark.startswith("warning"))
    assert f"such as {files[0]}, line 2 ('x0') and {files[1]}, line 2 ('x1')" in contradicted
    assert f"'x0' in {files[0]}, line 2; 'x1' in {files[1]}, line 2; 'x2' in {files[2]}, line 2" in single


def test_two_labels_are_counted_as_by_hand(tmp_path):
    chance = np.random.default_rng(0)
    rows = [("abcdefgh"[chance.integers(8)] * int(chance.integers(1, 4)), "xyz"[chance.integers(3)]) for _ in range(60)]
    rows += [("only", "x"), ("only", "x")]
    counts = prepared(tmp_path, "text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows), "").check()[0]["train"]
    by_text = {text: {label for each, label in rows if each == text} for text, _ in rows}
    assert counts.two_labels == sum(len(labels) > 1 for labels in by_text.values()) > 3
    assert counts.duplicates == len(rows) - len({*rows})


def test_a_label_with_one_example_is_reported(tmp_path):
    remarks = prepared(tmp_path, "text\tlabel\na\tx\nb\ty\nc\tx\nd\tz\n", "")
    remarks.check()
    path = tmp_path / "train.tsv"
    assert f"warning: 2 labels have a single example: 'y' in {path}, line 3; 'z' in {path}, line 5" in remarks.remarks


def test_one_text_and_one_label_are_counted_in_the_singular(tmp_path):
    text = prepared(tmp_path, "text\tlabel\na\tx\na\ty\nb\tx\n", "")
    text.check()
    assert any("data.train: 1 text occurs with more than one label" in remark for remark in text.remarks)
    assert any("1 label has a single example: 'y' in " in remark for remark in text.remarks)


def test_where_the_columns_are_is_said_once_for_all_files_alike(tmp_path):
    files = [write(tmp_path / f"{n}.tsv", "review\tstars\na\t1\nb\t2\nc\t1\nd\t2\n") for n in range(3)]
    text = LabelledText(Data(train=files, tokenizer="bytes", held_out=0), ignore)
    text.check()
    assert text.remarks == [f"note: {files[0]} and 2 more: the text is in column 'review', the label in 'stars'"]


def test_the_report_reads_well_and_comes_back(tmp_path):
    text = prepared(tmp_path, max_length=4)
    counts, tokenizers = text.check()
    for part in counts:
        _, counts[part] = text.encode(part, counts[part], tokenizers, tmp_path)
    report = Report(counts, 4, tuple(text.remarks))
    assert report.lines()[:5] == [
        "train: 7 texts with 3 labels, 5 of them kept: 13 tokens",
        "       dropped: 2 empty",
        "       kept, but worth a look: 1 cut to 4 tokens",
        "valid: 2 texts with 2 labels: 3 tokens",
        "       kept, but worth a look: 1 also in training",
    ]
    assert Report.from_json(json.loads(json.dumps(report.json()))) == report


def test_there_is_one_tokenizer(tmp_path):
    with pytest.raises(ValueError, match="one tokenizer"):
        prepared(tmp_path, tokenizer=TokenizerKinds(source="bpe", target="bpe"))
