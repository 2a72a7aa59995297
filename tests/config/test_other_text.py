"""Who gives data.train replaces the validation and test text of a recipe, too."""

import pytest

from sixfold.config.files import read_config, recipes
from sixfold.config.schema import Files


def data(recipe, said=None, **given):
    settings = {f"data.{key}": value for key, value in given.items()}
    return read_config(recipe, settings, say=None if said is None else said.append).data


def test_the_text_of_a_recipe_goes_together_and_it_is_said_in_one_line():
    said = []
    found = data("pronounce", said, train="own.tsv")
    assert (found.train, found.valid, found.test) == ("own.tsv", None, None)
    assert found.tokenizer.source == "characters"  # which is no property of the text
    (line,) = said
    assert "pronounce" in line
    assert line.endswith(": data.valid, data.test")


def test_what_is_given_too_is_kept():
    said = []
    found = data("help-en-de", said, train="own/train", valid="own/valid")
    assert (found.valid, found.test) == ("own/valid", None)
    assert said[0].endswith(": data.test")
    assert data("help-en-de", train="a", valid="b", test="c").test == "c"


def test_without_another_training_text_nothing_is_left_out():
    said = []
    assert data("pronounce", said, valid="own.tsv").test == "pronounce:test"
    assert data("lm", said, train="own.txt").train == "own.txt"  # this recipe has no text
    assert not said


@pytest.mark.parametrize(
    ("train", "kept"),
    [
        ("own/train", True),  # a prefix, like the recipe's
        ("own.tsv", False),
        ("own.jsonl.gz", False),
        ({"source": "a.en", "target": "a.de"}, False),
        (["own/train", {"path": "more/train"}], True),
        (["own/train", "own.tsv"], False),
        (Files(path="own/train"), True),
    ],
)
def test_suffixes_are_kept_where_they_can_fit(train, kept):
    found = data("help-en-de", train=train)
    assert (found.source, found.target) == (("en", "de") if kept else (None, None))
    assert data("help-en-de", train=train, source="fr").source == "fr"


def test_the_same_holds_for_a_recipe_in_a_file(tmp_path):
    copy = tmp_path / "mine.yaml"
    copy.write_bytes(recipes()["pronounce"].read_bytes())
    assert data(copy, train="own.tsv").valid is None
