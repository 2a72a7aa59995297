"""What `sixfold info` and the end of a training say of a real, tiny run."""

import json
import math

import numpy as np
import pytest

from sixfold.doctor.course import Course
from sixfold.doctor.recorded import RecordedCurve
from sixfold.doctor.run_doctor import RULES, curve_of, diagnose, examine, excess_entropy, text_facts
from sixfold.runs.run import Run
from sixfold.text.corpus import open_prepared
from sixfold.text.tokenizer import Tokenizers
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import train
from tests.support import tiny
from tests.support.logs import course, event
from tests.support.logs import train as lines
from tests.support.logs import valid as validations
from tools import record_curve


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tiny.corpus(tmp_path_factory.mktemp("corpus"))
    train(tiny.config(folder, training__warmup=50), folder / "run", display=Quiet())
    return Run(folder / "run")


def test_the_most_important_finding_comes_first():
    found = diagnose(course(lines([3.0, 2.9], epoch=0), [event("gave up", 200)], training__warmup=500))
    assert [finding.name for finding in found] == ["diverged", "rate_never_peaked", "first_epoch"]
    assert len(RULES) == len({rule.__name__ for rule in RULES})


def test_a_loss_that_rises_is_no_finding_where_a_reward_is_maximised():
    records, valid = lines([3.0, 2.9, 2.8, 2.7]), validations([3.0, 3.1, 3.2, 3.4])
    names = [
        {finding.name for finding in diagnose(course(records, valid, **task))}
        for task in ({}, {"task": "reward", "model__kind": "encoder_decoder"})
    ]
    assert "overfitting" in names[0]
    assert "overfitting" not in names[1]


def test_info_has_all_findings(run, sixfold):
    names = [finding.name for finding in examine(run)]
    assert names[0] == "rate_never_peaked"
    assert names[-1] == "not_compared"
    code, out, _ = sixfold("info", run.directory)
    assert code == 0
    assert "how it went" in out
    assert "the run stopped at step 12, and the warm-up has 50 steps" in out
    assert "No comparable run is known" in out
    described = json.loads(sixfold("info", run.directory, "--json")[1])["findings"]
    assert [finding["name"] for finding in described] == names
    assert described[0]["advice"].startswith("Train longer")


def test_after_training_the_three_most_important_are_said_before_what_to_type(sixfold, tmp_path):
    folder = tiny.corpus(tmp_path)
    options = ["--data.train", folder / "train", "--data.source", "w", "--data.target", "r", "--training.warmup", 50]
    small = ["--training.steps", 2, "--model.d_model", 16, "--model.heads", 2, "--model.layers", 1]
    options += ["--data.held_out", 0]
    code, _, err = sixfold("train", *options, *small, "--training.device", "cpu", "--out", "run")
    assert code == 0
    said = err.partition("how it went:\n")[2].partition("what to type next:")[0].splitlines()
    assert [line.split()[:3] for line in said] == [
        ["The", "learning", "rate"],
        ["Nothing", "was", "validated,"],
        ["Is", "this", "normal?"],
    ]


def test_a_run_that_has_not_begun_has_no_findings(run, tmp_path):
    new = Run(tmp_path / "new")
    new.begin(run.read_config(), {})
    assert examine(new) == []


def test_a_run_whose_text_is_gone_is_examined_all_the_same(run, tmp_path):
    bare = Run(tmp_path / "bare")
    bare.begin(run.read_config(), {})
    bare.log.write_bytes(run.log.read_bytes())
    assert [finding.name for finding in examine(bare)] == [finding.name for finding in examine(run)]


def test_the_validation_record_has_statistics_of_the_outputs(run):
    record = next(record for record in run.records() if record["kind"] == "valid")
    names = {name for name in record if name.startswith("output_")}
    assert names == {"output_length", "output_repeating", "output_copied", "output_empty"}
    assert all(0 <= record[name] < 10 for name in names)


def test_the_excess_is_0_for_the_same_frequencies_and_grows_with_rare_tokens():
    """Of 8 tokens each of two words occurs 4 times, so with one more each both have probability ½."""
    train, words = np.array([0, 1] * 4), 2
    assert excess_entropy(train, np.array([1, 0]), words) == pytest.approx(0.0)
    # Word 2 has probability 1/11 and words 0 and 1 have 5/11: it costs log 5 more.
    assert excess_entropy(train, np.array([2]), 3) == pytest.approx(math.log(5))


def test_the_facts_of_a_text_are_those_of_its_target_side(run):
    prepared = open_prepared(run.data, Tokenizers.load(run.directory))
    facts = text_facts(prepared)
    words = [len(line.split()) for line in (run.directory.parent / "valid.r").read_text().splitlines()]
    assert facts.valid_length == pytest.approx(sum(words) / len(words))


def test_the_curve_of_a_run_can_be_recorded(run, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["record_curve.py", str(run.directory), "--name", "tiny"])
    record_curve.main()
    curve = RecordedCurve.from_json(capsys.readouterr().out)
    made = Course(run.records(), run.read_config())
    prepared = open_prepared(run.data, Tokenizers.load(run.directory))
    assert curve == curve_of(run, made, prepared)._replace(name="tiny")
    assert (curve.task, curve.tokenizer, curve.metric) == ("translation", "characters → symbols", "exact_match")
    assert curve.epoch_tokens == sum(
        len(line.split()) + 1 for line in (run.directory.parent / "train.r").read_text().splitlines()
    )
    assert len(curve.points) == 2
