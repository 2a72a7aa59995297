"""A text with mistakes is checked: each is found once, at its file and line, and nothing in a text without."""

import gzip
import random

import pytest

from sixfold.config.schema import Data
from sixfold.doctor.items import Reader
from sixfold.doctor.survey import counted
from sixfold.doctor.text_doctor import check_text, rows_of
from sixfold.doctor.text_report import lines
from sixfold.text.forms import LABELLED_TEXT, PAIRS, PLAIN_TEXT
from sixfold.text.sources import pair_sources, text_sources
from tests.support.doubtful import BAD, GOOD, pairs, write_pairs


def checked(form, **data):
    return check_text(Data(**{key: str(value) for key, value in data.items()}), form, lambda *_: None)


def check_pairs(folder, rows=None, **data):
    return checked(PAIRS, train=write_pairs(folder, rows), source="en", target="de", **data)


def places(check, kind, part="train"):
    return [[str(place) for place in item.places] for item in check.splits[part].examples[kind]]


def test_each_mistake_is_found_at_its_line(tmp_path):
    check = check_pairs(tmp_path)
    assert check.splits["train"].counts == {**dict.fromkeys(BAD, 1), "duplicate": 1}
    for number, (kind, pair) in enumerate(BAD.items(), len(GOOD) + 1):
        assert places(check, kind) == [[f"{tmp_path}/train.en:{number}", f"{tmp_path}/train.de:{number}"]]
        assert check.splits["train"].examples[kind][0].texts == pair
    assert places(check, "duplicate")[0][0] == f"{tmp_path}/train.en:{len(pairs())}"


def test_a_text_without_mistakes_is_not_talked_about(tmp_path):
    check = check_pairs(tmp_path, GOOD)
    first, second, third, *_ = lines(check, {})
    assert (first, second) == ("train: 3 pairs", "nothing suspicious")
    assert third.startswith("tokens: per word of the source, per word of the target")


def test_every_line_of_the_report_is_printed_once_for_its_kind(tmp_path):
    said = [*lines(check_pairs(tmp_path), {})]
    assert f"train: {len(pairs())} pairs" in said
    assert "  1 pair with control characters" in said
    assert any(line.endswith("red \\x1b[31m line") for line in said)
    assert "nothing suspicious" not in said


def test_only_three_examples_of_a_kind_are_shown(tmp_path):
    check = check_pairs(tmp_path, [*GOOD, *[GOOD[0]] * 5])
    assert check.splits["train"].counts == {"duplicate": 5}
    assert [pair[0][-1] for pair in places(check, "duplicate")] == ["4", "5", "6"]


def test_overlap_is_told_in_both_splits(tmp_path):
    write_pairs(tmp_path, [GOOD[1], ("Something else", "Etwas anderes")], "test")
    check = check_pairs(tmp_path, GOOD, test=tmp_path / "test")
    assert check.splits["train"].counts == {"held_out": 1}
    assert check.splits["test"].counts == {"in_training": 1}
    assert places(check, "held_out")[0][0].endswith("train.en:2")
    assert places(check, "in_training", "test")[0][0].endswith("test.en:1")


def test_very_long_texts_are_those_that_training_drops_for_sure(tmp_path):
    rows = [*GOOD, ("a" * 81, "b" * 60), ("a" * 80, "b" * 60)]
    check = checked(PAIRS, train=write_pairs(tmp_path, rows), source="en", target="de")
    assert check.splits["train"].counts == {}
    data = Data(train=str(tmp_path / "train"), source="en", target="de", max_length=10)
    assert check_text(data, PAIRS, lambda *_: None).splits["train"].counts == {"long": 1}


def test_bytes_that_are_not_utf8_do_not_stop_it(tmp_path):
    write_pairs(tmp_path, GOOD)
    (tmp_path / "train.de").write_bytes("Häuser\nEine Katze\nBrötchen\n".encode("latin-1"))
    check = checked(PAIRS, train=tmp_path / "train", source="en", target="de")
    assert check.splits["train"].counts == {"undecodable": 2}
    assert check.splits["train"].examples["undecodable"][1].texts[1] == "Br\ufffdtchen"
    facts = check.files[str(tmp_path / "train.de")]
    assert (facts.lines, facts.broken) == (3, 2)
    assert any("2 lines are not UTF-8, and training refuses the file" in line for line in lines(check, {}))


def test_a_character_that_is_cut_at_the_end_of_the_file_is_not_utf8(tmp_path):
    (tmp_path / "a.txt").write_bytes("plain\nÄ".encode()[:-1])
    check = checked(PLAIN_TEXT, train=tmp_path / "a.txt")
    assert check.splits["train"].counts == {"undecodable": 1}


def test_marks_and_windows_line_ends_are_told_for_each_file(tmp_path):
    write_pairs(tmp_path, GOOD)
    (tmp_path / "train.en").write_bytes(b"\xef\xbb\xbfThe house is small.\r\nA cat\r\nWe eat bread.\n")
    check = checked(PAIRS, train=tmp_path / "train", source="en", target="de")
    assert check.splits["train"].counts == {}
    facts = check.files[str(tmp_path / "train.en")]
    assert (facts.mark, facts.windows, facts.lines) == (True, 2, 3)
    said = "\n".join(lines(check, {}))
    assert "begins with a byte order mark" in said
    assert "2 of 3 lines end in \\r\\n" in said
    assert "train.de:" not in said
    assert "nothing suspicious" not in said


def test_packed_files_are_read_as_well(tmp_path):
    write_pairs(tmp_path)
    for ending in ("en", "de"):
        path = tmp_path / f"train.{ending}"
        (tmp_path / f"packed.{ending}.gz").write_bytes(gzip.compress(path.read_bytes()))
    packed = checked(PAIRS, train=tmp_path / "packed", source="en", target="de")
    assert packed.splits["train"].counts == check_pairs(tmp_path).splits["train"].counts
    assert places(packed, "control")[0][0] == f"{tmp_path}/packed.en.gz:6"


def test_tables_of_pairs_have_the_line_of_the_row(tmp_path):
    rows = ["source\ttarget", *("\t".join(pair) for pair in GOOD), "", "copied as it is here\tcopied as it is here"]
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{row}\n" for row in rows))
    check = checked(PAIRS, train=path, source="source", target="target")
    assert check.splits["train"].counts == {"empty": 1, "copied": 1}
    assert places(check, "copied") == [[f"{path}:6"]]
    assert places(check, "empty") == [[f"{path}:5"]]


def test_texts_with_labels(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text('text,label\ngood film,pos\nbad film,neg\n"two\nlines",pos\ngood film,neg\nbad film,neg\n')
    check = checked(LABELLED_TEXT, train=path)
    assert check.splits["train"].counts == {"labels": 2, "duplicate": 1}
    assert places(check, "labels") == [[f"{path}:2"], [f"{path}:6"]]
    assert places(check, "duplicate") == [[f"{path}:7"]]
    assert any(line.endswith("good film  [neg]") for line in lines(check, {}))


def test_plain_text_may_repeat_short_lines_and_have_empty_ones(tmp_path):
    long = "a line of plain text that is so long that it is hardly said twice by chance, as short ones are"
    path = tmp_path / "play.txt"
    path.write_text(f"KING\nyes\n\nKING\nyes\n\n{long}\n{long}\n")
    check = checked(PLAIN_TEXT, train=path)
    assert check.splits["train"].counts == {"duplicate": 1}
    assert places(check, "duplicate") == [[f"{path}:8"]]


def test_records_of_plain_text_are_documents(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "one\\ntwo"}\n{"text": "a\\u0000b"}\n')
    check = checked(PLAIN_TEXT, train=path)
    assert check.splits["train"].rows == 2
    assert places(check, "control") == [[f"{path}:2"]]


def test_a_mixed_side_has_no_unusual_script(tmp_path):
    russian = [("The house", "Большой дом"), ("Some bread", "Белый хлеб")] * 3
    german = [("The house", "Großes Haus"), ("Some bread", "Etwas Brot")]
    check = check_pairs(tmp_path, [*russian, *german])
    assert "script" not in check.splits["train"].counts


def test_hashes_find_what_a_comparison_of_all_rows_finds(tmp_path):
    """Two routes: the duplicates and the overlap by a dictionary of the texts."""
    chance = random.Random(3)
    train, test = ([(f"w{chance.randint(1, 40)} x", f"v{chance.randint(1, 3)} y") for _ in range(n)] for n in (90, 50))
    write_pairs(tmp_path, test, "test")
    check = check_pairs(tmp_path, train, test=tmp_path / "test")
    sources = {source for source, _ in train}
    assert check.splits["train"].counts["duplicate"] == len(train) - len({*train})
    assert check.splits["test"].counts["in_training"] == sum(source in sources for source, _ in test)
    held_out = {source for source, _ in test}
    assert check.splits["train"].counts["held_out"] == sum(source in held_out for source, _ in train)


def test_tokens_per_word(tmp_path):
    """Six letters and the space between two words, of three and three letters: 7 characters in 2 words."""
    check = check_pairs(tmp_path, [("abc def", "漢字漢字漢字漢字漢字漢字漢字漢字")] * 2)
    by = {measured.kind: measured for measured in check.tokens}
    assert check.units == ("word", "character")
    assert by["characters"].tokens == (3.5, 1.0)
    assert [*by] == ["bpe", "characters"]


def test_separate_tokenizers_are_measured_each_on_its_side(tmp_path):
    write_pairs(tmp_path, [("abc", "A B C")])
    own = {"source": "characters", "target": "symbols"}
    data = Data(train=str(tmp_path / "train"), source="en", target="de", tokenizer=own)
    measured = check_text(data, PAIRS, lambda *_: None).tokens[-1]
    assert (measured.kind, measured.tokens) == ("characters → symbols", (3.0, 1.0))


def test_a_file_that_shrinks_or_grows_meanwhile_is_an_error(tmp_path):
    check = check_pairs(tmp_path, GOOD)
    write_pairs(tmp_path, [*GOOD, *GOOD])
    with pytest.raises(ValueError, match="has changed while it was read"):
        [*rows_of(check, "train")]


def test_lines_of_different_numbers_are_one_error(tmp_path):
    write_pairs(tmp_path, GOOD)
    (tmp_path / "train.de").write_text("eins\n")
    with pytest.raises(ValueError, match=r"train\.en has 3 lines, but .*train\.de has 1"):
        checked(PAIRS, train=tmp_path / "train", source="en", target="de")


def test_items_have_the_texts_that_training_reads(tmp_path):
    data = Data(train=str(write_pairs(tmp_path)), source="en", target="de")
    (source,) = pair_sources(data, "train")
    assert [item.texts for item in Reader(source, PAIRS)] == [*source.read()]
    plain = Data(train=str(tmp_path / "train.en"))
    (source,) = text_sources(plain, "train")
    stored = b"".join(item.stored[0] for item in Reader(source, PLAIN_TEXT))
    assert stored == (tmp_path / "train.en").read_bytes()


def test_counts_leave_out_kinds_that_do_not_occur(tmp_path):
    assert counted(check_pairs(tmp_path, GOOD).splits["train"].flags) == {}
