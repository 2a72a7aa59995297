"""The configuration: what is refused, and in which words."""

import pytest

from sixfold.config.files import read_config, with_whole_paths
from sixfold.config.schema import keys


def refused(**settings):
    with pytest.raises(ValueError) as error:
        read_config(None, {key.replace("__", "."): value for key, value in settings.items()})
    return str(error.value)


@pytest.mark.parametrize(
    "key", ["training__minutes", "training__learning_rate", "training__clip", "decoding__max_ratio", "model__dropout"]
)
@pytest.mark.parametrize("value", [".inf", ".nan"])
def test_what_is_no_finite_number_is_refused(key, value):
    said = refused(**{key: value})
    assert said.startswith(key.replace("__", "."))
    assert "finite number" in said


def test_a_weight_must_be_finite():
    assert "data.train.weight: input should be a finite number" in refused(data__train="{path: a.tsv, weight: .inf}")


@pytest.mark.parametrize("section", ["training", "decoding"])
def test_a_seed_has_a_largest_value(section):
    assert f"{section}.seed: input should be less" in refused(**{f"{section}__seed": "99999999999999"})
    read_config(None, {f"{section}.seed": str(2**32 - 1)})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"data__train": "{path: tr.tsv, wieght: 2}"},
            "there is no key 'data.train.wieght'; did you mean 'data.train.weight'?",
        ),
        ({"data__train": "{path: tr.tsv, weight: 0}"}, "data.train.weight: input should be greater than 0, got 0"),
        ({"data__train": "[a, {path: 5}]"}, "data.train.1.path: input should be a valid string, got 5"),
        ({"data__train": "5"}, "data.train: input should be a valid string, or a valid list, got 5"),
        ({"data__vocabulary": "{source: 5}"}, "data.vocabulary.target is missing"),
        ({"data__vocabulary": "1e11"}, "data.vocabulary: input should be a valid integer, got 100000000000.0"),
        ({"data__vocabulary": "-5"}, "data.vocabulary: input should be greater than or equal to 1, got -5"),
        (
            {"data__vocabulary": "100000000000"},
            "data.vocabulary: input should be less than or equal to 10000000, got 100000000000",
        ),
        (
            {"decoding__length_penalty": "long"},
            "decoding.length_penalty: input should be a valid number, or 'average' or 'none', got 'long'",
        ),
        (
            {"training__steps": "5", "training__minutes": "3"},
            "training: give training.steps or training.minutes, got both (5 and 3.0)",
        ),
        ({"training__stpes": "5"}, "there is no key 'training.stpes'; did you mean 'training.steps'?"),
        ({"dta__train": "5"}, "there is no key 'dta'; did you mean 'data'?"),
    ],
)
def test_a_mistake_is_named_where_it_is(settings, words):
    assert refused(**settings) == words


@pytest.mark.parametrize("key", [name for name, _ in keys()])
def test_a_wrong_type_is_reported_under_the_key_alone(key):
    """Not under the names that pydantic has for the types of a value, such as constrained-int."""
    assert refused(**{key.replace(".", "__", 1): "[[3.5]]"}).startswith((f"{key}: ", f"{key}.0: "))


def test_a_tilde_is_the_home_directory(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    files = "[~/a, {path: ~/b}, {source: ~/c, target: /d}]"
    whole = with_whole_paths(read_config(None, {"data.train": files, "data.valid": "~/e"})).data
    one, two, three = whole.train
    assert [one, two.path, three.source, three.target] == ["/home/me/a", "/home/me/b", "/home/me/c", "/d"]
    assert whole.valid == "/home/me/e"
