"""Recipes can be listed, read and copied."""

import json

from sixfold.config.files import read_config, recipes


def test_each_recipe_is_listed_with_what_it_is_for(sixfold):
    code, out, _ = sixfold("list", "--recipes", "--json")
    found = {entry["name"]: entry["about"] for entry in json.loads(out)}
    assert code == 0
    assert found.keys() == recipes().keys()
    assert all(len(about) > 20 for about in found.values())


def test_a_recipe_that_is_shown_is_the_recipe(sixfold, tmp_path):
    copy = tmp_path / "mine.yaml"
    copy.write_text(sixfold("show", "pronounce")[1])
    assert read_config(copy) == read_config("pronounce")


def test_what_does_not_exist_is_answered_by_what_does(sixfold):
    code, out, err = sixfold("show", "pronunce")
    assert code != 0
    assert not out
    assert "did you mean 'pronounce'?" in err
    code, _, err = sixfold("list", "--recipes", "--tasks")
    assert code != 0
    assert "--recipes" in err
