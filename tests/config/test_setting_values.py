"""Settings: as Python values, as lists of one, and against the values of a recipe."""

from pathlib import Path

import pytest

import sixfold as package
from sixfold.config.files import read_config
from tests.support import runs

RECIPE = "decoding: {beam_size: 4, beam_groups: 2, n_best: 3, min_length: 8}\n"
SAMPLING = "decoding: {sample: true, n_best: 5}\n"


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("training.steps", 4, "4"),
        ("training.learning_rate", 0.5, "0.5"),
        ("training.deterministic", False, "false"),
        ("data.train", Path("corpus/train"), "corpus/train"),
        ("data.train", ["a.tsv", {"path": "b.tsv", "weight": 2}], "[a.tsv, {path: b.tsv, weight: 2}]"),
        ("data.vocabulary", {"source": 5, "target": 6}, "{source: 5, target: 6}"),
        ("decoding.length_penalty", "none", "none"),
    ],
)
def test_a_python_value_is_what_its_text_is(key, value, text):
    assert read_config("pronounce", {key: value}) == read_config("pronounce", {key: text})


def test_a_python_value_of_another_type_is_refused_by_name():
    with pytest.raises(ValueError, match=r"training\.steps: input should be a valid integer, got 4\.5"):
        read_config("pronounce", {"training.steps": 4.5})


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("decoding.forbidden_words", "Hund", ["Hund"]),
        ("decoding.forbidden_words", "two words", ["two words"]),
        ("decoding.forbidden_words", "42", ["42"]),
        ("decoding.forbidden_words", "", []),
        ("decoding.forbidden_words", "[one, two words]", ["one", "two words"]),
        ("model.modifications", "rotary", ["rotary"]),
        ("model.modifications", "t5_bias:buckets=16", ["t5_bias:buckets=16"]),
        ("model.modifications", "{t5_bias: {buckets: 16}}", [{"t5_bias": {"buckets": 16}}]),
    ],
)
def test_one_value_is_a_list_of_one(key, text, expected):
    section, _, name = key.partition(".")
    assert getattr(getattr(read_config(None, {key: text}), section), name) == expected


def test_an_option_that_takes_several_may_be_given_often(sixfold, tmp_path):
    run = runs.translating(tmp_path / "run")
    Path("in").write_text("a b c\n")
    translated = sixfold("translate", run, "in", "--device", "cpu")[1].split()
    first, second = translated[0], next(word for word in translated if word != translated[0])
    for words in (["--forbidden_words", first], ["--forbidden_words", first, "--forbidden_words", second]):
        code, out, err = sixfold("translate", run, "in", "--device", "cpu", *words)
        assert code == 0, err
        assert not {*words[1::2]} & {*out.split()}


def decoding(tmp_path, recipe, **settings):
    (tmp_path / "r.yaml").write_text(recipe)
    return read_config(tmp_path / "r.yaml", {f"decoding.{key}": value for key, value in settings.items()}).decoding


def test_asking_to_sample_wins_over_the_beam_of_a_recipe(tmp_path):
    found = decoding(tmp_path, RECIPE, sample="true")
    assert (found.sample, found.beam_size, found.beam_groups, found.n_best) == (True, 1, 1, 3)
    assert decoding(tmp_path, RECIPE, sample="false").beam_size == 4


@pytest.mark.parametrize(
    ("recipe", "asked", "expected"),
    [
        (RECIPE, {"beam_size": 1}, {"beam_size": 1, "beam_groups": 1, "n_best": 1}),
        (RECIPE, {"beam_size": 6}, {"beam_size": 6, "beam_groups": 2, "n_best": 3}),
        (RECIPE, {"max_length": 5}, {"max_length": 5, "min_length": 0}),
        (RECIPE, {"max_length": 9}, {"max_length": 9, "min_length": 8}),
        (SAMPLING, {"beam_size": 8}, {"sample": False, "beam_size": 8, "n_best": 5}),
        (SAMPLING, {"beam_size": 1}, {"sample": True, "n_best": 5}),
        (SAMPLING, {"sample": False}, {"sample": False, "n_best": 1}),
    ],
)
def test_an_option_wins_over_a_value_of_the_recipe_that_conflicts(tmp_path, recipe, asked, expected):
    found = decoding(tmp_path, recipe, **asked)
    assert {key: getattr(found, key) for key in expected} == expected


def test_two_options_that_conflict_are_refused(tmp_path):
    with pytest.raises(ValueError, match="sampling has no beam: for several outputs give n_best, not beam_size 2"):
        decoding(tmp_path, RECIPE, sample=True, beam_size=2)


def test_a_run_with_a_beam_samples_when_asked(sixfold, tmp_path):
    run = runs.translating(tmp_path / "run", **{"decoding.beam_size": "4"})
    Path("in").write_text("a b c\n")
    code, out, err = sixfold("translate", run, "in", "--sample", "true", "--device", "cpu")
    assert code == 0, err
    translator = package.load(run, device="cpu")
    assert out.splitlines() == [found.text for found in translator.translate(["a b c"], sample=True)]


def test_a_section_may_be_given_by_its_name():
    nested = read_config("pronounce", {"training": {"steps": 4}, "model.heads": 2})
    assert nested == read_config("pronounce", {"training.steps": 4, "model.heads": 2})


@pytest.mark.parametrize("settings", [{4: 4}, ["training.steps"]])
def test_settings_are_keys_with_values(settings):
    with pytest.raises(ValueError, match="settings are keys with values, such as"):
        read_config("pronounce", settings)
