"""What has changed since a run was last at work: what may, and what is refused before anything is touched."""

import json
import re
import shutil

import pytest
import torch
from ruamel.yaml import YAML

from sixfold.config.files import write_config
from sixfold.disk.hashes import with_hash
from sixfold.runs.run import Run
from sixfold.training import resume_checks, runner
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import resume, train
from sixfold.training.trainer import Trainer
from tests.support import tiny
from tests.support.breaking_off import Listener, breaking_off_after, breaking_off_at, broken_off, contents
from tests.support.plain_text import recipe


def edit(run, section, **values):
    yaml = YAML(typ="safe", pure=True)
    tree = yaml.load(run.config.read_text())
    tree[section].update(values)
    with open(run.config, "w") as file:
        yaml.dump(tree, file)


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("training", {"learning_rate": 0.5}, r"training\.learning_rate was 0\.001 and is 0\.5;"),
        ("model", {"dropout": 0.3}, r"model\.dropout was 0\.1 and is 0\.3"),
        ("decoding", {"beam_size": 2}, r"decoding\.beam_size was 1 and is 2"),
        ("data", {"max_length": 9}, r"data\.max_length was 256 and is 9"),
        ("data", {"test": None, "train": [{"path": "X", "weight": 2.0}]}, r"data\.train was .* and is .*2\.0"),
    ],
)
def test_a_configuration_changed_by_hand_is_noticed(run, section, values, words):
    train_files = run.read_config().data.train
    edit(run, section, **json.loads(json.dumps(values).replace('"X"', json.dumps(train_files))))
    before = contents(run)
    with pytest.raises(ValueError, match=rf"config\.yaml was changed: {words}"):
        resume(run.directory, {"training.steps": "6"}, display=Quiet())
    assert contents(run) == before


def without_a_task(run, also=()):
    """The run as version 0.1 left it, or one that did not know some options of a task yet."""
    for path in run.training.glob("*/state.json"):
        state = json.loads(path.read_text())
        task = state["config"].pop("task")
        if also:
            state["config"]["task"] = {key: value for key, value in task.items() if key not in also}
        path.write_text(json.dumps(with_hash(state)))


@pytest.mark.parametrize("unknown", [(), ("random",)], ids=["no task", "an option less"])
@pytest.mark.parametrize("task", [{"name": "masked_words", "random": 0.2}, "classification", "masked_words", None])
def test_another_task_option_is_noticed_though_the_checkpoint_has_none(tmp_path, unknown, task):
    run = Run(tmp_path / "run")
    with breaking_off_at(Trainer, "train"):
        train(recipe(tmp_path, "mlm", training__steps="1"), run.directory, display=Quiet())
    without_a_task(run, unknown)
    write_config(run.read_config().model_copy(update={"task": task}), run.config)
    if task in (None, "masked_words"):  # as it was
        assert resume(run.directory, display=Quiet()).finished
        return
    with pytest.raises(ValueError, match=r"config\.yaml was changed: task was \{.*\"random\": 0\.1\} and is \{"):
        resume(run.directory, display=Quiet())


def test_what_may_change_may_change_in_the_file_too(run):
    edit(run, "training", steps=5, patience=7, log_every=1, keep=3)
    assert resume(run.directory, display=Quiet()).reason == "all 5 steps are done"


def test_text_that_moved_may_be_named_in_the_file(run):
    moved = shutil.copytree(run.directory.parent, run.directory.parent / "moved", ignore=lambda *_: ["run"])
    edit(run, "data", train=str(moved / "train"), valid=str(moved / "valid"))
    with pytest.raises(ValueError, match="--allow-changed-data"):
        resume(run.directory, display=Quiet())
    more = {"training.steps": "6"}
    with breaking_off_at(Trainer, "train"):
        resume(run.directory, more, allow_changed_data=True, display=Quiet())
    assert resume(run.directory, more, display=Quiet()).finished
    assert resume(run.directory, {"training.steps": "7"}, display=Quiet()).finished


def test_data_that_were_allowed_are_written_down_even_if_that_broke_off(run):
    for side in ("w", "r"):
        path = run.directory.parent / f"train.{side}"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:9]))
    more = {"training.steps": "5"}
    with breaking_off_at(Run, "begin"):
        resume(run.directory, more, allow_changed_data=True, display=Quiet())
    with pytest.raises(ValueError, match="--allow-changed-data"):
        resume(run.directory, more, display=Quiet())
    with breaking_off_at(Trainer, "train"):
        resume(run.directory, more, allow_changed_data=True, display=Quiet())
    assert resume(run.directory, more, display=Quiet()).finished


def test_another_tokenizer_is_refused_before_the_text_is_made_anew(run, four_steps, monkeypatch):
    other = tiny.short(four_steps, data__tokenizer="{source: bytes, target: symbols}")
    with breaking_off_at(Trainer, "train"):
        train(other, run.directory.with_name("other"), display=Quiet())
    shutil.copy(run.directory.with_name("other") / "source.tokenizer.json", run.directory)
    before = contents(run)
    monkeypatch.setattr(runner, "prepare", broken_off)
    with pytest.raises(ValueError, match="step-4 was written with other tokenizers"):
        resume(run.directory, display=Quiet())
    assert contents(run) == before


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("null", "training.steps is null, but this run was begun with a number of steps"),
        ("3", "training.steps is 3, but this run has already done 4"),
    ],
)
def test_steps_that_cannot_be_gone_are_refused(run, steps, words):
    before = contents(run)
    with pytest.raises(ValueError, match=words):
        resume(run.directory, {"training.steps": steps}, display=Quiet())
    assert contents(run) == before


def test_patience_does_not_stand_for_the_steps_of_a_run_that_was_begun_with_them(tmp_path):
    run = Run(tiny.corpus(tmp_path) / "run")
    train(tiny.short(tmp_path, training__patience=3), run.directory, display=Quiet())
    with pytest.raises(ValueError, match=r"training\.steps is null"):
        resume(run.directory, {"training.steps": "null"}, display=Quiet())


def by_minutes(folder, minutes):
    config = tiny.config(folder)
    training = config.training.model_copy(update={"steps": None, "minutes": minutes, "warmup": 0.1})
    return config.model_copy(update={"training": training})


def test_minutes_are_refused_for_a_run_that_was_begun_by_steps(run):
    before = contents(run)
    with pytest.raises(ValueError, match=r"this run was not begun by minutes, .*--from RUN --training.minutes N"):
        resume(run.directory, {"training.minutes": "1"}, display=Quiet())
    assert contents(run) == before


def test_more_minutes_are_refused_after_the_last_step_and_taken_before_it(tmp_path):
    run = Run(tiny.corpus(tmp_path) / "run")
    with breaking_off_after(Trainer, "step", 6):
        train(by_minutes(tmp_path, 0.05), run.directory, display=Quiet())
    assert resume(run.directory, {"training.minutes": "0.06"}, display=Quiet()).finished
    before = contents(run)
    with pytest.raises(ValueError, match=r"this run has used its 0\.06 minutes"):
        resume(run.directory, {"training.minutes": "1"}, display=Quiet())
    assert contents(run) == before
    assert resume(run.directory, display=Quiet()).finished


def test_other_surroundings_are_said_in_one_line(run, monkeypatch):
    listener, versions = Listener(), resume_checks.versions()
    resume(run.directory, display=listener)
    assert not any("since step-4" in words for words in listener.words)
    edit(run, "training", accumulate=2)
    monkeypatch.setattr(resume_checks, "versions", lambda: {**versions, "torch": "9.9"})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    resume(run.directory, display=listener)
    (said,) = [words for words in listener.words if "since step-4" in words]
    torch_then = re.escape(versions["torch"])
    assert re.match(
        rf"changed since step-4: threads was \d+ and is 77; torch was {torch_then} and is 9\.9; "
        rf"training\.accumulate was 1 and is 2\. ",
        said,
    )
