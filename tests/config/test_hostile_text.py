"""YAML and JSON that were written to do harm are refused in one sentence, quickly and with little memory."""

import json
import time
from itertools import pairwise

import pytest

from sixfold.config.files import read_config
from sixfold.config.plain_yaml import DEEPEST, LONGEST, parse
from sixfold.core.quote import quoted
from sixfold.disk.hashes import with_hash
from sixfold.disk.reading import DEEPEST_JSON, parse_json
from sixfold.runs.run import Run
from sixfold.text.corpus import open_prepared
from sixfold.training.checkpoint import DamagedError, read_state
from tests.support.runs import translating

NAMES = "abcdefghi"
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n" for before, name in pairwise(NAMES)
)


def test_aliases_are_refused_before_they_are_expanded(tmp_path):
    path = tmp_path / "laughs.yaml"
    path.write_text(f"{LAUGHS}data: {{train: *i}}\n")
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"laughs\.yaml, line 2: \*a is an alias"):
        read_config(path)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("depth", [DEEPEST + 1, 3_000])
@pytest.mark.parametrize("text", [lambda depth: "[" * depth, lambda depth: "{a: " * depth, lambda depth: "- " * depth])
def test_deep_nesting_is_refused_in_a_file_and_on_the_command_line(tmp_path, text, depth):
    path = tmp_path / "deep.yaml"
    value = text(depth)[: LONGEST - 100]
    path.write_text(f"data:\n  train:\n    {value}\n")
    with pytest.raises(ValueError, match=rf"deep\.yaml, line 3: values are nested more than {DEEPEST} deep"):
        read_config(path)
    with pytest.raises(ValueError, match=rf"--data\.train, line 1: values are nested more than {DEEPEST} deep"):
        read_config(None, {"data.train": value})


def test_a_value_may_be_nested_as_deep_as_any_key_needs():
    assert parse("[" * DEEPEST + "]" * DEEPEST, "it") is not None
    chosen = read_config(None, {"model.modifications": "[{adaptive_input: {cutoffs: [4, 9], factors: [1, 2, 4]}}]"})
    assert chosen.model.modifications == [{"adaptive_input": {"cutoffs": [4, 9], "factors": [1, 2, 4]}}]


@pytest.mark.parametrize("tagged", ["!!int x", "!!bool x", '!!int ""', "!!set {a}", "[!!str 1]", "!mine {}"])
def test_tags_are_refused(tagged):
    with pytest.raises(ValueError, match="is a tag"):
        read_config(None, {"data.train": tagged})


@pytest.mark.parametrize("value", ["2024-99-99", "1" + "0" * 5000, r'"\UFFFFFFFF"'])
def test_what_looks_like_a_value_and_is_none_is_named(value):
    with pytest.raises(ValueError, match=r"--data\.train: a value can't be read"):
        read_config(None, {"data.train": value})


def test_a_configuration_of_megabytes_is_refused(tmp_path):
    path = tmp_path / "long.yaml"
    path.write_text("x" * (LONGEST + 1))
    with pytest.raises(ValueError, match=r"long\.yaml: a configuration has at most 262,144 characters, got 262,145"):
        read_config(path)
    path.write_text("x" * (4 * LONGEST + 1))
    with pytest.raises(
        ValueError, match=r"long\.yaml can't be read as a configuration: it has more than 1,048,576 bytes"
    ):
        read_config(path)


@pytest.mark.parametrize("value", ["x" * 100_000, f"[{', '.join(['x'] * 2_000)}]", f"0x{'f' * 50_000}"])
def test_a_long_value_is_shortened_in_the_error(value):
    with pytest.raises(ValueError, match=r"^data\.max_length: ") as error:
        read_config(None, {"data.max_length": value})
    assert len(str(error.value)) < 400


def test_quoted_is_repr_for_short_values():
    for value in (None, True, -7, 1.5, "a'b", ["a", 1], {"k": [1, 2]}, ("x",), b"x", 10**100):
        assert quoted(value) == repr(value)


def test_quoted_is_short_for_all_others():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    many = [[["x"] * 1000] * 1000] * 1000
    for value in (deep, many, "x" * 10**6, {str(i): many for i in range(1000)}, 10**10_000, 1 << 1_000_000):
        assert len(quoted(value)) <= 200


def test_complaints_are_shortened_whoever_wrote_them(sixfold):
    code, out, err = sixfold("list", "x" * 100_000)
    assert (code, out) == (2, "")
    assert err.startswith("sixfold: there is no modification 'xxx")
    assert "`sixfold list` shows all" in err
    assert len(err) < 2_100


# JSON ---------------------------------------------------------------------------------------------------------------


def test_json_has_a_depth():
    most = "[" * DEEPEST_JSON + "]" * DEEPEST_JSON
    assert json.dumps(parse_json(most)) == most
    assert parse_json(json.dumps(["[" * 1000])) == ["[" * 1000]  # brackets in a text are no nesting
    for depth in (DEEPEST_JSON + 1, 300, 100_000):
        for text in ("[" * depth + "]" * depth, '{"a": ' * depth + "1" + "}" * depth):
            with pytest.raises(ValueError, match="nested more than 50 deep"):
                parse_json(text)


DEEP = "[" * 500 + "]" * 500


@pytest.fixture
def run(tmp_path):
    return Run(translating(tmp_path / "run"))


def test_deep_nesting_in_a_model_description_is_a_sentence(run, sixfold):
    description = json.loads((run.directory / "model.json").read_text())
    for key in ("format", "model", "sizes", "modifications"):
        text = json.dumps({**description, key: "here"}).replace('"here"', DEEP)
        (run.directory / "model.json").write_text(text)
        code, _, err = sixfold("translate", run.directory, "-")
        assert (code, err.count("\n")) == (2, 1)
        assert "model.json is not JSON: its values are nested" in err


def test_deep_nesting_in_the_other_files_of_a_run_is_a_sentence(run, sixfold):
    run.about.write_text(f'{{"versions": {DEEP}}}')
    run.log.write_text(f'{{"kind": "train", "step": 1, "loss": {DEEP}}}\n')
    with pytest.raises(ValueError, match=r"run\.json can't be read: its values are nested"):
        run.read_about()
    code, _, err = sixfold("info", run.directory)
    assert (code, err) == (2, f"sixfold: {run.log}, line 1 is damaged: its values are nested more than 50 deep\n")
    place = run.training / "step-1"
    place.mkdir(parents=True)
    (place / "state.json").write_text(DEEP)
    with pytest.raises(DamagedError, match="its values are nested"):
        read_state(place)
    run.data.mkdir()
    (run.data / "index.json").write_text(DEEP)
    with pytest.raises(ValueError, match=r"index\.json is damaged \(its values are nested"):
        open_prepared(run.data, None)


def test_deep_nesting_in_references_is_a_sentence(tmp_path):
    (tmp_path / "references.jsonl").write_text("[" * 100_000)
    index = {"format": "sixfold-data-1", "tokenizers": [], "arrays": {}, "references": 1}
    (tmp_path / "index.json").write_text(json.dumps(with_hash(index)))
    with pytest.raises(ValueError, match=r"references\.jsonl is damaged or missing \(its values are nested"):
        open_prepared(tmp_path, ())


@pytest.mark.parametrize("record", [{"seconds": {}}, {"seconds": "1e999"}, {"loss": []}, {"loss": None, "epoch": "x"}])
def test_a_log_with_other_values_is_a_sentence_in_info_and_a_gap_in_a_plot(run, sixfold, record):
    whole = {"kind": "train", "step": 1, "epoch": 0, "tokens": 5, "loss": 1.0, "learning_rate": 1.0, "padding": 0.0}
    run.log.write_text(json.dumps({**whole, "seconds": 1.0, **record}) + "\n")
    code, _, err = sixfold("info", run.directory)
    assert (code, err.count("\n")) == (2, 1)
    assert "log.jsonl or run.json in" in err
    assert sixfold("plot", run.directory)[0] == 0


def test_a_report_with_other_values_is_a_sentence(run, sixfold):
    for report in ({"parts": 1}, {"parts": {"train": 1}}, [1]):
        run.about.write_text(json.dumps({"report": report}))
        code, _, err = sixfold("info", run.directory)
        assert (code, "log.jsonl or run.json in" in err) == (2, True)


def test_a_step_beyond_all_numbers_is_damage(run):
    run.log.write_text(json.dumps({"kind": "train", "step": 10**400}) + "\n")
    with pytest.raises(ValueError, match="line 1 is damaged"):
        list(run.records())


@pytest.mark.parametrize(
    "wrong", [{"type": "9" * 5000}, {"type": "f4"}, {"rows": 1.5}, {"tokens": None}, {"groups": [[0, "x"]]}]
)
def test_prepared_text_that_is_described_wrongly_is_refused(tmp_path, wrong):
    from sixfold.text.arrays import RowWriter, open_examples

    with RowWriter(tmp_path, "train.target", 9) as writer:
        pass
    described = {**writer.described(), **wrong}
    with pytest.raises(ValueError, match="prepare the data again"):
        open_examples(tmp_path, "train", {"target": described, "groups": wrong.get("groups", [[0, 1.0]])})
