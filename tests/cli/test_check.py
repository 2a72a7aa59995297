"""`sixfold check`: how text is named, and what is printed."""

import json

import pytest

from tests.support.doubtful import BAD, GOOD, pairs, write_pairs

SUFFIXES = ("--data.source", "en", "--data.target", "de")


def found(out):
    return {kind: found["rows"] for kind, found in json.loads(out)["parts"]["train"]["found"].items()}


def test_a_prefix_two_files_and_the_option_name_the_same_text(sixfold, tmp_path):
    write_pairs(tmp_path)
    expected = {**dict.fromkeys(BAD, 1), "duplicate": 1}
    for asked in (("train", *SUFFIXES), ("train.en", "train.de"), ("--data.train", "train", *SUFFIXES)):
        code, out, _ = sixfold("check", *asked, "--json")
        assert code == 0
        assert found(out) == expected


def test_examples_have_file_and_line_and_drive_no_terminal(sixfold, tmp_path):
    write_pairs(tmp_path)
    code, out, _ = sixfold("check", "train", *SUFFIXES)
    assert code == 0
    assert "    train.en:6  red \\x1b[31m line\n    train.de:6  rote Zeile\n" in out
    assert "\x1b" not in out


def test_the_form_follows_from_the_kind_of_the_file(sixfold, tmp_path):
    (tmp_path / "a.txt").write_text("some text\n")
    (tmp_path / "a.csv").write_text("text,label\ngood,pos\nbad,neg\n")
    (tmp_path / "a.tsv").write_text("good\tgut\n")
    for name, form in {"a.txt": "plain text", "a.csv": "texts with labels", "a.tsv": "pairs"}.items():
        assert json.loads(sixfold("check", name, "--json")[1])["form"] == form
    asked = ("check", "a.tsv", "--task", "classification", "--json")
    assert json.loads(sixfold(*asked)[1])["form"] == "texts with labels"
    two = json.loads(sixfold("check", "a.txt", "a.txt", "--task", "language_model", "--json")[1])
    assert (two["form"], two["parts"]["train"]["rows"]) == ("plain text", 2)


def test_a_recipe_is_checked_with_all_its_text(sixfold, tmp_path):
    write_pairs(tmp_path, GOOD)
    (tmp_path / "mine.yaml").write_text("data: {train: train, valid: train, source: en, target: de}\n")
    code, out, _ = sixfold("check", "mine.yaml", "--json")
    assert code == 0
    assert {part: of["rows"] for part, of in json.loads(out)["parts"].items()} == {"train": 3, "valid": 3}
    assert found(out) == {"held_out": 3}


def test_a_cleaned_copy_is_written_and_told(sixfold, tmp_path):
    write_pairs(tmp_path)
    code, out, _ = sixfold("check", "train", *SUFFIXES, "--clean", "new")
    assert code == 0
    assert f"written: train, {len(pairs()) - 8} pairs; dropped 8:" in out
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["train.de", "train.en"]
    code, out, err = sixfold("check", "train", *SUFFIXES, "--clean", "new")
    assert (code, out) == (2, "")
    assert "new is not an empty directory" in err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ((), "there is no text to check"),
        (("train", "--data.train", "train"), "training text is given twice"),
        (("nowhere", *SUFFIXES), "there is no file"),
        (("train.en", "short"), "but short has 1"),
    ],
)
def test_a_mistake_is_one_sentence(sixfold, tmp_path, asked, said):
    write_pairs(tmp_path)
    (tmp_path / "short").write_text("one\n")
    code, out, err = sixfold("check", *asked)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
