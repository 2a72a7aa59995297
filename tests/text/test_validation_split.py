"""Validation text that is held out of the training text."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sixfold.config.schema import Data
from sixfold.text.corpus import open_prepared, prepare
from sixfold.text.forms import LABELLED_TEXT, PAIRS, PLAIN_TEXT
from sixfold.text.validation_split import (
    CutPoints,
    characters_to_hold_out,
    choose,
    choose_by_label,
    key_of,
    rows_to_hold_out,
)
from tests.support.stand_ins import write

PAIR_ROWS = [(f"word {i}", f"{i} drow") for i in range(200)]
TABLE = [(f"text {i}", "xyyy"[i % 4]) for i in range(400)]


def table(rows):
    return "".join("\t".join(row) + "\n" for row in rows)


def made(folder, form, text, name="train.tsv", **data):
    folder.mkdir(exist_ok=True)
    train = text if isinstance(text, list) else write(folder / name, text)
    return prepare(Data(train=train, **{"tokenizer": "bytes", "context": 8, **data}), form, folder / "data")


def texts(prepared, part):
    """The rows of a part, as text."""
    examples = getattr(prepared, part)
    sides = [side for side in (examples.source, examples.target) if side is not None]
    return [
        tuple(tokenizer.decode(side[row]) for side, tokenizer in zip(sides, prepared.tokenizers, strict=False))
        for row in range(len(examples))
    ]


def remark(prepared):
    (said,) = (line for line in prepared.report.remarks if "no validation text" in line)
    return said


# How much ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "held"),
    [(0, 0), (19, 0), (20, 5), (40, 10), (199, 10), (1000, 50), (20_000, 1000), (10**7, 1000)],
)
def test_5_percent_of_the_rows_but_neither_few_nor_many(rows, held):
    assert rows_to_hold_out(Data(), rows) == held


@pytest.mark.parametrize(("size", "held"), [(999, 0), (1000, 50), (10**6, 50_000), (10**9, 500_000)])
def test_5_percent_of_plain_text_but_not_much(size, held):
    assert characters_to_hold_out(Data(), size) == held


def test_a_number_and_a_share_are_taken_as_they_are():
    assert rows_to_hold_out(Data(held_out=7), 14) == 7
    assert rows_to_hold_out(Data(held_out=0.1), 70) == 7
    assert characters_to_hold_out(Data(held_out=3), 8) == 3
    with pytest.raises(ValueError, match=r"data.held_out is 8, but data.train has 15 rows: at most half"):
        rows_to_hold_out(Data(held_out=8), 15)


# Which rows ----------------------------------------------------------------------------------------------------------


def test_the_smallest_keys_are_chosen_and_repeated_ones_only_if_all_copies_fit():
    keys = np.array([5, 1, 9, 1, 1, 7, 5])
    assert choose(keys, 0) == set()
    assert choose(keys, 2) == {5}  # three rows have key 1
    assert choose(keys, 3) == {1}
    assert choose(keys, 4) == {1, 7}
    assert choose(keys, 7) == {1, 5, 7, 9}


def test_each_label_gives_its_share_and_keeps_at_least_half():
    labels = np.repeat([0, 1, 2], [80, 19, 1])
    chosen = choose_by_label(np.arange(100), labels, 10)
    assert Counter(labels[[*chosen]].tolist()) == {0: 8, 1: 2}
    assert len(choose_by_label(np.arange(100), labels, 100)) == 40 + 9


def test_a_key_depends_on_the_text_and_the_seed_only():
    assert key_of(1)("Wörter") == key_of(1)("Wörter") != key_of(2)("Wörter")
    assert key_of(1)("a") == 4942068887039823890  # the same in every process and version


def test_pairs_are_divided_and_it_is_said(tmp_path):
    prepared = made(tmp_path, PAIRS, table(PAIR_ROWS))
    train, valid = texts(prepared, "train"), texts(prepared, "valid")
    assert sorted(train + valid) == sorted(PAIR_ROWS)
    assert [(each.source, each.targets[0]) for each in prepared.references] == valid
    assert (len(train), len(valid)) == (190, 10)
    assert remark(prepared) == (
        "note: no validation text is given: 10 of 200 pairs are held out, chosen by data.seed 1"
    )
    counts = prepared.report.splits
    assert [*counts] == ["train", "valid"]
    assert [(part.lines, part.rows, part.empty) for part in counts.values()] == [(190, 190, 0), (10, 10, 0)]


def test_the_order_of_the_files_does_not_matter_and_the_seed_does(tmp_path):
    mixed = random.Random(1).sample(PAIR_ROWS, len(PAIR_ROWS))
    halves = [write(tmp_path / f"{n}.tsv", table(half)) for n, half in enumerate((mixed[:70], mixed[70:]))]
    first = texts(made(tmp_path / "first", PAIRS, table(PAIR_ROWS)), "valid")
    assert texts(made(tmp_path / "mixed", PAIRS, halves), "valid") == first
    assert set(texts(made(tmp_path / "other", PAIRS, table(PAIR_ROWS), seed=2), "valid")) != set(first)


def test_all_pairs_of_a_source_are_on_one_side_and_are_counted(tmp_path):
    rows = [(source, target) for source, _ in PAIR_ROWS for target in ("a", "b", "b")]
    prepared = made(tmp_path, PAIRS, table(rows))
    train, valid = texts(prepared, "train"), texts(prepared, "valid")
    assert not {source for source, _ in train} & {source for source, _ in valid}
    assert len(valid) == 30  # 5 % of 600
    assert [part.duplicates for part in prepared.report.splits.values()] == [190, 10]


@pytest.mark.parametrize("rows", [PAIR_ROWS[:19], PAIR_ROWS[:1] * 100])
def test_few_or_equal_pairs_are_not_divided_and_that_is_said(tmp_path, rows):
    prepared = made(tmp_path, PAIRS, table(rows))
    assert prepared.valid is None
    assert len(prepared.train) == len(rows)
    assert remark(prepared) == (
        "warning: no validation text is given, and the training text is too small, or too uniform, to hold some out: "
        "the run trains without validation"
    )


def test_nothing_is_held_out_if_asked_for_nothing_or_if_there_is_a_validation_text(tmp_path):
    assert made(tmp_path / "none", PAIRS, table(PAIR_ROWS), held_out=0).valid is None
    valid = write(tmp_path / "valid.tsv", table(PAIR_ROWS[:3]))
    prepared = made(tmp_path / "given", PAIRS, table(PAIR_ROWS), valid=valid)
    assert (len(prepared.train), len(prepared.valid), prepared.report.remarks) == (200, 3, ())


# Texts with labels ---------------------------------------------------------------------------------------------------


def test_texts_are_divided_by_label(tmp_path):
    prepared = made(tmp_path, LABELLED_TEXT, table(TABLE))
    assert Counter(each.targets[0] for each in prepared.references) == {"x": 5, "y": 15}
    assert prepared.valid.columns["label"].tolist() == ["xy".index(each.targets[0]) for each in prepared.references]
    assert sorted(texts(prepared, "train") + texts(prepared, "valid")) == sorted((text,) for text, _ in TABLE)
    counts = prepared.report.splits["valid"]
    assert (counts.lines, counts.classes, counts.two_labels, counts.in_training) == (20, 2, 0, 0)
    assert "20 of 400 texts are held out, chosen by data.seed 1 within each label" in remark(prepared)


def test_a_text_with_two_labels_and_a_label_with_one_text_stay_in_training(tmp_path):
    twice = [(f"both {i}", label) for i in range(50) for label in "xy"]
    prepared = made(tmp_path, LABELLED_TEXT, table([*TABLE, *twice, ("only", "z")]), held_out=100)
    held = {text for (text,) in texts(prepared, "valid")}
    assert held
    assert not held & {"only", *(text for text, _ in twice)}


def test_texts_that_all_have_two_labels_are_not_divided_and_that_is_said(tmp_path):
    prepared = made(tmp_path, LABELLED_TEXT, table([(f"both {i}", label) for i in range(50) for label in "xy"]))
    assert prepared.valid is None
    assert "too small, or too uniform, to hold some out" in remark(prepared)


# Plain text ----------------------------------------------------------------------------------------------------------

LINES = [f"line {i} of a play\n" for i in range(1000, 1300)]


def test_the_end_of_a_text_is_held_out_as_if_it_were_a_file_of_its_own(tmp_path):
    text = "".join(LINES)
    here = text.index("\n", round(0.95 * len(text)) - 1) + 1
    prepared = made(tmp_path / "one", PLAIN_TEXT, text, "a.txt")
    (tmp_path / "two").mkdir()
    valid = write(tmp_path / "two" / "valid.txt", text[here:])
    apart = made(tmp_path / "two", PLAIN_TEXT, text[:here], "train.txt", valid=valid)
    for part in ("train", "valid"):
        assert np.array_equal(getattr(prepared, part).target.ids, getattr(apart, part).target.ids)
        assert np.array_equal(getattr(prepared, part).target.offsets, getattr(apart, part).target.offsets)
        assert prepared.report.splits[part] == apart.report.splits[part]
    assert f"{len(text) - here:,} of {len(text):,} characters are held out, the end of each file" in remark(prepared)


def test_each_file_gives_its_end_and_records_are_not_cut(tmp_path):
    records = [json.dumps({"text": f"document {i:02} " + "x" * 50}) + "\n" for i in range(60)]
    files = [write(tmp_path / "a.txt", "".join(LINES)), write(tmp_path / "b.jsonl", "".join(records))]
    prepared = made(tmp_path / "run", PLAIN_TEXT, files, context=10_000)
    ((valid,),) = texts(prepared, "valid")
    assert valid.startswith("line 12")
    assert "document 58" in valid
    assert "document 56" not in valid
    assert prepared.report.splits["valid"].documents == 1 + 3


@pytest.mark.parametrize("text", ["word " * 300, "x" * 1500])
def test_a_text_of_one_line_is_cut_at_a_space_or_anywhere(tmp_path, text):
    prepared = made(tmp_path, PLAIN_TEXT, text, "a.txt", context=2000)
    ((train,),), ((valid,),) = texts(prepared, "train"), texts(prepared, "valid")
    assert train + valid == text
    assert valid.startswith((" word", "xx"))
    assert 60 < len(valid) <= 75


def test_places_are_after_documents_rather_than_lines():
    places = CutPoints()
    stretches = [("ab\n", False), ("c\n", False), ("", True), ("de\n", False), ("fgh\n", False), ("", True)]
    assert [*places.watch([*stretches, ("\n", False)])] == [*stretches, ("\n", False)]
    assert places.length == 12  # without the empty line at the end
    assert [places.before_last(number) for number in (8, 7, 6, 4, 1)] == [5, 5, 8, 8, 11]
    assert places.lines_after(5) == 3


# Afterwards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "text", "name"),
    [(PAIRS, table(PAIR_ROWS), "t.tsv"), (LABELLED_TEXT, table(TABLE), "t.tsv"), (PLAIN_TEXT, "".join(LINES), "t.txt")],
)
def test_preparing_again_divides_alike(tmp_path, form, text, name):
    first = made(tmp_path, form, text, name)
    data = Data(train=str(tmp_path / name), tokenizer="bytes", context=8)
    prepare(data, form, tmp_path / "again", first.tokenizers, labels=first.labels)
    for file in sorted((tmp_path / "data").iterdir()):
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name
    assert open_prepared(Path(tmp_path, "again"), first.tokenizers).references == first.references
