"""Which task a configuration means, by whatever way it is said."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sixfold.config.files import read_config, write_config
from sixfold.runs.run import Run
from sixfold.tasks import task as module
from sixfold.tasks.task import Task, all_tasks, find_task, register, settled, task_of, usual_task
from tests.support import labelled

OURS = {"translation", "language_model", "masked_words", "classification", "reward"}
A_TASK = """
from dataclasses import replace
from sixfold.tasks.task import find_task, register

register(replace(find_task("classification"), name="sorting", about="Mine."))
"""


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(module, "_registered", all_tasks())


def config(task=None, **settings):
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return read_config(None, given if task is None else {**given, "task": task})


def written(folder, text):
    (folder / "recipe.yaml").write_text(text)
    return read_config(folder / "recipe.yaml")


def test_each_file_of_the_package_is_a_task():
    found = all_tasks().keys() - {"two_terms", "own_words"}  # which other tests may have registered
    assert found == OURS
    assert all(task.name == name and task.kinds and task.about for name, task in all_tasks().items())


@pytest.mark.parametrize(
    ("kind", "name"),
    [("encoder_decoder", "translation"), ("decoder_only", "language_model"), ("encoder_only", "masked_words")],
)
def test_a_configuration_with_a_kind_alone_means_what_it_meant(kind, name):
    assert usual_task(kind).name == name
    said = settled(config(model__kind=kind))
    assert (said.task, said.model.kind) == (find_task(name).entry(), kind)
    assert settled(said) == said


def test_a_configuration_that_says_nothing_translates():
    assert settled(config()).task == {"name": "translation", "r_drop": 0.0}


@pytest.mark.parametrize(("recipe", "name"), [("lm", "language_model"), ("mlm", "masked_words")])
def test_recipes_mean_what_they_meant(recipe, name):
    assert settled(read_config(recipe)).task["name"] == name


def test_the_task_decides_the_kind():
    assert settled(config("classification")).model.kind == "encoder_only"
    assert settled(config("language_model")).model.kind == "decoder_only"
    assert settled(config("classification", model__kind="encoder_only")).model.kind == "encoder_only"


def test_a_kind_that_can_not_do_it_is_refused():
    with pytest.raises(ValueError) as error:
        settled(config("classification", model__kind="decoder_only"))
    assert "task 'classification' needs a model of kind encoder_only, got decoder_only" in str(error.value)


def test_options_from_text_and_from_yaml_are_the_same(tmp_path):
    from_text = config("masked_words:masked=0.5,chosen=0.2")
    from_yaml = written(tmp_path, "task: {name: masked_words, masked: 0.5, chosen: 0.2}\n")
    expected = {"name": "masked_words", "chosen": 0.2, "masked": 0.5, "random": 0.1}
    assert settled(from_text).task == settled(from_yaml).task == expected
    assert task_of(from_text).options == task_of(from_yaml).options
    assert find_task("masked_words").options.masked == 0.8  # the registered one is as it was


def test_what_is_settled_comes_back_from_a_file(tmp_path):
    said = settled(config("masked_words:masked=0.5"))
    write_config(said, tmp_path / "config.yaml")
    again = read_config(tmp_path / "config.yaml")
    assert (again, settled(again), task_of(again)) == (said, said, task_of(said))


def test_a_file_may_name_a_task_alone(tmp_path):
    assert task_of(written(tmp_path, "task: language_model\n")).name == "language_model"


def test_the_command_line_wins_over_the_file(tmp_path):
    (tmp_path / "recipe.yaml").write_text("task: {name: masked_words, masked: 0.5}\n")
    assert task_of(read_config(tmp_path / "recipe.yaml", {"task": "language_model"})).name == "language_model"


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("clasification", ["there is no task 'clasification' (did you mean 'classification'?)", "--import FILE"]),
        ("masked_words:maskd=0.3", ["task 'masked_words' has no option 'maskd' (did you mean 'masked'?)", "random"]),
        ("translation:beam=3", ["task 'translation' has no option 'beam'", "it has r_drop"]),
        ("masked_words:masked=often", ["option 'masked' of task 'masked_words'", "often"]),
        ("masked_words:masked", ["masked"]),
        ({"masked": 0.3}, ["task: give {name: NAME, option: value}"]),
        ({"name": 3}, ["task: give {name: NAME, option: value}"]),
    ],
)
def test_a_mistake_gets_one_sentence(task, words):
    with pytest.raises(ValueError) as error:
        task_of(config(task))
    assert all(word in str(error.value) for word in words), error.value
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("translation", "task 'translation' is one of sixfold's own; give yours another name"),
        ("my task", "the name of a task has letters, digits and _, got 'my task'"),
        ("mine:share", "the name of a task has letters, digits and _"),
    ],
)
def test_a_name_that_is_taken_or_can_not_be_typed_is_refused(name, words):
    with pytest.raises(ValueError) as error:
        register(replace(find_task("classification"), name=name))
    assert words in str(error.value)
    assert name not in all_tasks() or find_task(name).name == name != "classification"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metrics": ("acuracy",)}, "task 'mine': there is no metric 'acuracy'; did you mean 'accuracy'?"),
        ({"answers": None}, "task 'mine' has metrics, so it needs `user` and `answers`"),
        ({"user": None}, "task 'mine' has metrics, so it needs `user` and `answers`"),
    ],
)
def test_metrics_that_could_not_be_computed_are_refused_before_training(change, words):
    with pytest.raises(ValueError) as error:
        register(replace(find_task("classification"), name="mine", **change))
    assert words in str(error.value)


def test_options_have_the_types_of_their_dataclass():
    @dataclass(frozen=True)
    class Mine:
        often: int = 2
        aloud: bool = False

    kept = {name: getattr(find_task("translation"), name) for name in ("form", "lengths", "collate", "losses")}
    mine = Task(name="mine", about="", kinds=("encoder_decoder",), verb="", metrics=(), options=Mine(), **kept)
    register(mine)
    assert task_of(config("mine:often=3,aloud=true")).options == Mine(3, True)
    assert mine.with_options({"often": 5}).entry() == {"name": "mine", "often": 5, "aloud": False}
    with pytest.raises(ValueError, match="'often' of task 'mine'"):
        task_of(config("mine:often=2.5"))


def test_the_list_has_names_options_and_verbs(sixfold):
    code, out, _ = sixfold("list", "--tasks", "--json")
    found = {task["name"]: task for task in json.loads(out)}
    assert (code, found.keys() >= OURS) == (0, True)
    assert found["masked_words"]["options"] == {"chosen": 0.15, "masked": 0.8, "random": 0.1}
    assert found["classification"]["kinds"] == ["encoder_only"]
    assert (found["classification"]["verb"], found["classification"]["metrics"]) == (
        "classify",
        ["accuracy", "macro_f1"],
    )


def test_the_list_reads_as_a_table(sixfold, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = sixfold("list", "--tasks")
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("masked_words")]
    assert "encoder_only" in line
    assert "chosen=0.15" in line
    assert sixfold("list", "rotary", "--tasks")[0] == 2


def test_the_list_does_not_import_torch():
    program = (
        "import runpy, sys\n"
        "try: runpy.run_module('sixfold', run_name='__main__')\n"
        "except SystemExit as left: assert not left.code\n"
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, "list", "--tasks"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "classification" in done.stdout


def options(folder):
    given = labelled.config(folder, training__steps=2, training__validate_every=2)
    write_config(given.model_copy(update={"task": None}), folder / "tiny.yaml")
    text = (folder / "tiny.yaml").read_text()
    (folder / "tiny.yaml").write_text(text.replace("kind: encoder_decoder", "kind: encoder_only"))
    return ["train", folder / "tiny.yaml", "--out", folder / "run"]


def test_a_task_on_the_command_line_is_what_the_run_says(sixfold, tmp_path):
    code, _, err = sixfold(*options(labelled.tables(tmp_path)), "--task", "classification")
    assert code == 0, err
    assert Run(tmp_path / "run").read_config().task == {"name": "classification"}


def test_a_users_task_is_imported(sixfold, tmp_path):
    command = [*options(labelled.tables(tmp_path)), "--task", "sorting"]
    code, _, err = sixfold(*command)
    assert (code, "there is no task 'sorting'" in err) == (2, True)
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine.py").write_text(A_TASK)
    code, _, err = sixfold(*command, "--import", tmp_path / "mine.py")
    assert code == 0, err
    assert Run(tmp_path / "run").read_config().task == {"name": "sorting"}
    assert f"sixfold classify {tmp_path / 'run'} --import {tmp_path / 'mine.py'}" in err  # what to type next
    code, out, _ = sixfold("list", "--tasks", "--json", "--import", tmp_path / "mine.py")
    assert (code, {task["name"]: task["about"] for task in json.loads(out)}["sorting"]) == (0, "Mine.")


def test_another_task_is_no_way_to_go_on(sixfold, tmp_path):
    assert sixfold(*options(labelled.tables(tmp_path)), "--task", "classification")[0] == 0
    code, _, err = sixfold("train", "--resume", tmp_path / "run", "--task", "masked_words")
    assert (code, "--task" in err) == (2, True), err
    run = Run(tmp_path / "run")
    run.config.write_text(run.config.read_text().replace("classification", "masked_words"))
    code, _, err = sixfold("train", "--resume", tmp_path / "run", "--training.steps", "4")
    assert code == 2
    assert "task was" in err
