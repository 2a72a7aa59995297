"""`sixfold train` and what follows it, as a person types them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sixfold.cli import main
from sixfold.config.files import read_config
from sixfold.training import runner
from sixfold.training.runner import Outcome

TINY = {
    "data.train": "pairs.tsv",
    "data.valid": "pairs.tsv",
    "data.source": "1",
    "data.target": "2",
    "data.tokenizer": "characters",
    "model.d_model": "8",
    "model.d_ff": "8",
    "model.heads": "2",
    "model.layers": "1",
    "training.batch_tokens": "64",
    "training.steps": "4",
    "training.log_every": "2",
    "training.metric": "loss",
}


def options(settings):
    return [word for key, value in settings.items() for word in (f"--{key}", value)]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory to be in, with a small corpus."""
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("".join(f"{'ab' * n}\t{'ba' * n}\n" for n in range(1, 9)))
    return tmp_path


@pytest.fixture
def sixfold(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["sixfold", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def asked(monkeypatch):
    """What the verb asks of the library, which answers with `outcome`."""
    calls = []
    outcome = [Outcome("all steps are done", Path("runs/x"), finished=True)]

    def train(config, out, **rest):
        calls.append((config, out, rest))
        return outcome[0]

    def resume(run, settings, **rest):
        calls.append((run, settings, rest))
        return outcome[0]

    monkeypatch.setattr(runner, "train", train)
    monkeypatch.setattr(runner, "resume", resume)
    return calls, outcome


def test_a_run_from_beginning_to_end(sixfold, place):
    code, out, err = sixfold("train", *options(TINY), "--out", "runs/mine")
    assert (code, out) == (0, "")
    assert "step 4  stopped: all 4 steps are done" in err
    commands = ("info runs/mine", "plot runs/mine", "translate runs/mine", "score runs/mine --part valid")
    assert err.splitlines()[-4:] == [f"  sixfold {command}" for command in commands]
    described = json.loads(sixfold("info", "runs/mine", "--json")[1])
    assert described["progress"]["step"] == described["progress"]["steps"] == 4
    assert "all 4 steps are done" in sixfold("info", "runs/mine")[1]

    code, _, err = sixfold("train", *options(TINY), "--out", "runs/mine")
    assert code == 2
    assert "--resume" in err
    assert "--overwrite" in err
    assert sixfold("train", *options(TINY), "--out", "runs/mine", "--overwrite")[0] == 0

    code, _, err = sixfold("train", "--resume", "runs/mine", "--training.steps", "6")
    assert code == 0
    assert "step 6  stopped: all 6 steps are done" in err
    code, _, err = sixfold("train", "--resume", "runs/mine", "--model.d_model", "16")
    assert code == 2
    assert "--model.d_model" in err


@pytest.fixture
def trained(sixfold, place):
    """runs/mine, unlike the defaults, on two files; and more text of its kind."""
    for prefix in ("corpus", "more"):
        Path(prefix).mkdir()
        for end, letters in (("en", "ab"), ("de", "ba")):
            Path(prefix, f"train.{end}").write_text("".join(f"{letters * n}\n" for n in range(1, 9)))
    settings = {**TINY, "data.train": "corpus/train", "data.source": "en", "data.target": "de", "model.heads": "1"}
    settings |= {"model.encoder_layers": "2", "model.modifications": "[rotary]"}
    del settings["data.valid"]
    assert sixfold("train", *options(settings), "--out", "runs/mine")[0] == 0


def test_the_line_of_the_readme_adapts_a_run_of_any_size(sixfold, trained):
    line = "sixfold train --from runs/mine --data.train more/train --out runs/adapted"
    readme = Path(__file__).parents[2] / "README.md"
    assert f"    {line}\n" in readme.read_text()
    code, out, err = sixfold(*line.split()[1:], "--training.steps", "2")
    assert (code, out) == (0, "")
    assert "100 % of this model's parameters (" in err
    description, adapted = (json.loads(Path(f"runs/{run}/model.json").read_text()) for run in ("mine", "adapted"))
    assert adapted == description
    assert sixfold("info", "runs/adapted")[0] == 0


def test_modify_adds_to_the_modifications_of_the_run_to_begin_with(sixfold, trained, asked):
    calls, _ = asked
    text = ("--data.train", "more/train")
    sixfold("train", "--from", "runs/mine", *text)
    sixfold("train", "--from", "runs/mine", *text, "--modify", "swiglu")
    sixfold("train", "--from", "runs/mine", *text, "--modify", "swiglu", "--model.modifications", "[]")
    given = [config.model.modifications for config, _, _ in calls]
    assert given == [[], ["rotary", "swiglu"], ["swiglu"]]
    assert ["modifications" in config.model.model_fields_set for config, _, _ in calls] == [False, True, True]


def test_what_begins_with_a_run_needs_text_of_its_own(sixfold, trained):
    code, out, err = sixfold("train", "--from", "runs/mine", "--out", "new")
    assert (code, out) == (2, "")
    assert err == "sixfold: there is no text to train on: give --data.train, or a recipe that has it\n"
    assert not Path("new").exists()


def test_without_a_recipe_it_is_the_embedded_default(sixfold, asked, place):
    calls, _ = asked
    sixfold("train", "--training.minutes", "3", "--modify", "rotary")
    config, out, rest = calls[0]
    assert config.data.train == "pronounce:train"
    assert (config.training.minutes, config.training.steps) == (3, None)
    assert config.model.modifications == ["rotary"]
    assert out == Path("runs/pronounce")
    assert rest == {"overwrite": False, "start_from": None}


def test_ones_own_data_do_not_inherit_from_the_embedded_default(sixfold, asked):
    calls, _ = asked
    sixfold("train", "--data.train", "corpus/train")
    config, out, _ = calls[0]
    assert config == read_config(settings={"data.train": "corpus/train"})
    assert out == Path("runs/transformer")


def test_a_recipe_file_names_the_run_and_the_command_line_wins(sixfold, asked, place):
    calls, _ = asked
    Path("mine.yaml").write_text(
        "data: {train: a}\ntraining: {steps: 10, seed: 3}\nmodel: {modifications: [rms_norm]}\n"
    )
    sixfold("train", "mine.yaml", "--training.steps", "20", "--modify", "rotary", "--from", "old", "--overwrite")
    config, out, rest = calls[0]
    assert (config.training.steps, config.training.seed) == (20, 3)
    assert config.model.modifications == ["rms_norm", "rotary"]
    assert out == Path("runs/mine")
    assert rest == {"overwrite": True, "start_from": Path("old")}


def test_resume_hands_on_what_may_change(sixfold, asked):
    calls, _ = asked
    sixfold("train", "--resume", "runs/x", "--training.patience", "3", "--allow-changed-data")
    assert calls == [(Path("runs/x"), {"training.patience": "3"}, {"allow_changed_data": True})]


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        (Outcome("no better loss in 3 validations", Path("a b"), finished=True), 0, "sixfold info 'a b'"),
        (Outcome("SIGINT", Path("r"), finished=False, signal=signal.SIGINT), 130, "sixfold train --resume r"),
        (Outcome("SIGTERM", Path("r"), finished=False, signal=signal.SIGTERM), 143, "sixfold train --resume r"),
        (Outcome("the loss is not a number", Path("r"), finished=False), 1, "sixfold info r"),
    ],
)
def test_how_it_ended_is_the_exit_code(sixfold, asked, outcome, code, words):
    asked[1][0] = outcome
    left, out, err = sixfold("train")
    assert (left, out) == (code, "")
    assert words in err
    assert ("--resume" in err) == (outcome.signal is not None)


def test_of_many_processes_one_speaks(sixfold, asked, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert sixfold("train") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--resume", "r", "--out", "x", "--overwrite"], ["--out, --overwrite can't be given with --resume"]),
        (["train", "pronounce", "--resume", "r"], ["RECIPE can't be given with --resume"]),
        (["train", "--allow-changed-data"], ["--allow-changed-data can't be given with a new run"]),
        (["train", "--resume", "nowhere"], ["nowhere is not a run"]),
        (["train", "--from", "nowhere"], ["nowhere is not a run"]),
        (["train", "pronunce"], ["pronunce", "did you mean 'pronounce'"]),
        (["train", "--training.steps", "5", "--training.minutes", "5"], ["both"]),
        (["train", "transformer-base"], ["--data.train"]),
        (["info", "nowhere"], ["there is no directory nowhere"]),
        (["plot", "nowhere"], ["nowhere is not a run"]),
    ],
)
def test_a_mistake_gets_one_line_that_names_it_and_leaves_nothing(sixfold, place, arguments, words):
    code, out, err = sixfold(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert all(word in err for word in words), err
    assert [path.name for path in place.iterdir()] == ["pairs.tsv"]


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_a_directory_of_other_things_is_left_alone(sixfold, place, overwrite):
    Path(".git").mkdir()
    Path("model.json").write_text("{}")
    code, _, err = sixfold("train", *options(TINY), "--out", ".", *overwrite)
    assert code == 2
    assert "is not a run" in err
    assert sorted(path.name for path in place.iterdir()) == [".git", "model.json", "pairs.tsv"]


def test_what_broke_off_before_it_was_a_run_is_no_hindrance(sixfold, asked, place):
    for name in ("r/data", "r/.data.x1y2"):
        Path(name).mkdir(parents=True)
    Path("r/lock").write_text("")
    assert sixfold("train", "--out", "r")[0] == 0


def test_a_signal_saves_and_says_how_to_go_on(place):
    settings = {**TINY, "training.steps": "100000", "training.validate_every": "100000"}
    command = [sys.executable, "-m", "sixfold", "train", *options(settings), "--out", "r"]
    # Threads that wait for so little work would only keep the processor hot.
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place, env=alone)
    deadline = time.monotonic() + 60
    while not (place / "r" / "log.jsonl").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "interrupted by SIGINT" in err
    assert "sixfold train --resume r" in err
    assert "Traceback" not in err
