"""`sixfold score RUN --compare RUN2`: two runs on one text."""

import json
from pathlib import Path

import pytest

from sixfold.training.observers.display import Quiet
from sixfold.training.runner import train
from tests.support import runs, tiny


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two runs of different seeds and beams; only the first has a test part."""
    folder = tiny.corpus(tmp_path_factory.mktemp("corpus"))
    plain = {"training__steps": 30, "training__learning_rate": 0.01, "training__metric": "symbol_error_rate"}
    tested = {"data__test": str(folder / "valid")}
    train(tiny.config(folder, **plain, **tested, decoding__beam_size=2), folder / "one", display=Quiet())
    train(tiny.config(folder, **plain, training__seed=2), folder / "two", display=Quiet())
    return folder


def compared(out):
    (found,) = json.loads(out)["scores"]
    return found


def test_both_translate_the_test_text_of_the_first(sixfold, two):
    """The numbers are those of what each run writes by itself, compared as two files."""
    one, other = two / "one", two / "two"
    code, out, err = sixfold("score", one, "--compare", other, "--out", "one.r", "--json", "--device", "cpu")
    assert code == 0, err
    source, ref = two / "valid.w", two / "valid.r"
    assert sixfold("translate", other, source, "--out", "two.r", "--device", "cpu")[0] == 0
    by_files = sixfold(
        *("score", "--hyp", "one.r", "--ref", ref, "--compare", "two.r", "--metric", "symbol_error_rate", "--json")
    )[1]
    assert compared(out) == compared(by_files)
    assert compared(out)["first"] != compared(out)["second"]


def test_the_report_names_both_runs(sixfold, two):
    code, out, _ = sixfold("score", two / "one", "--compare", two / "two", "--device", "cpu")
    assert code == 0
    for words in (f"of {two}/one", f"of {two}/two", f"{two}/two − {two}/one", "paired bootstrap"):
        assert words in out.replace("\n", " ")


def test_both_translate_a_file(sixfold, two):
    given = ("--source-file", two / "train.w", "--ref", two / "train.r", "--json", "--device", "cpu")
    code, out, _ = sixfold("score", two / "two", "--compare", two / "one", *given)
    assert (code, json.loads(out)["texts"]) == (0, 60)
    alone = [json.loads(sixfold("score", two / name, *given)[1])["scores"][0]["value"] for name in ("two", "one")]
    assert [compared(out)[which]["value"] for which in ("first", "second")] == alone


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{two}", "--compare", "{one}"), "has no data.test"),
        (("{one}", "--compare", "lm"), "runs of different tasks can't be compared"),
        (("{one}", "--compare", "nowhere"), "there is no file 'nowhere'"),
        (("{one}", "--compare", "empty"), "empty"),
        (("--hyp", "text", "--ref", "text", "--compare", "{one}"), "can't be given with --hyp"),
        (("{one}", "{two}"), "is a directory"),
    ],
)
def test_what_can_not_be_compared(sixfold, two, tmp_path, arguments, words):
    runs.writing(tmp_path / "lm")
    Path("text").write_text("a\n")
    Path("empty").mkdir()
    code, out, err = sixfold("score", *(word.format(one=two / "one", two=two / "two") for word in arguments))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert words in err
