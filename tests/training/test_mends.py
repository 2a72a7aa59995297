"""Mistakes and damage that once cost a run, or ended it with a traceback."""

import errno
import json
import os
import re
import shutil

import pytest
import torch
from ruamel.yaml import YAML

from sixfold.api.describe import describe_run, table_of
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.terminal import console
from sixfold.text.arrays import RowWriter
from sixfold.training import checkpoint, resume_checks, runner
from sixfold.training.display import NO_BEST, Quiet
from sixfold.training.processes import said_once
from sixfold.training.runner import resume, train
from sixfold.training.trainer import Trainer
from sixfold.training.validation import Validation
from tests.training import tiny
from tests.training.test_beginning import BrokenOffError, breaking_off_at, broken_off, contents
from tests.training.test_records import Listener

SHORT = {"training__steps": 4, "training__checkpoint_every": 2, "training__validate_every": 2}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A corpus, and a run of four steps on it."""
    folder = tiny.corpus(tmp_path_factory.mktemp("made"))
    train(tiny.config(folder, **SHORT), folder / "run", display=Quiet())
    return folder


@pytest.fixture
def run(made, tmp_path):
    """The same, with a corpus of its own."""
    return Run(tiny.copied(made, tmp_path) / "run")


def config(run, **settings):
    return tiny.config(run.directory.parent, **{**SHORT, **settings})


def refuse(run, words, **settings):
    """Neither is anything lost of a run that was to be overwritten."""
    before = contents(run)
    with pytest.raises(ValueError, match=words):
        train(config(run, **settings), run.directory, overwrite=True, display=Quiet())
    assert contents(run) == before


# What may be replaced --------------------------------------------------------------------------------------------


def test_a_project_with_a_config_and_data_is_no_run(tmp_path):
    (tmp_path / "config.yaml").write_text("mine: true\n")
    (tmp_path / "data").mkdir()
    tiny.corpus(tmp_path / "data")
    project, before = Run(tmp_path), contents(Run(tmp_path))
    for do in (
        lambda: train(tiny.config(tmp_path / "data"), tmp_path, overwrite=True, display=Quiet()),
        lambda: resume(tmp_path, display=Quiet()),
    ):
        with pytest.raises(ValueError, match=r"is no(t a)? run"):
            do()
    assert contents(project) == before
    assert not (tmp_path / "lock").exists()


def test_text_inside_the_run_that_would_go_is_refused(run):
    for part in ("train", "valid"):
        for side in ("w", "r"):
            shutil.copy(run.directory.parent / f"{part}.{side}", run.data)
    refuse(run, r"train\.w is to be read, but lies in .*data", data__train=str(run.data / "train"))


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"decoding__forbidden_words": [" "]}, "forbidden words"),
        ({"decoding__max_source": 1, "decoding__too_long": "refuse"}, r"data\.valid, text 1 .*decoding\.max_source"),
        (
            {
                "decoding__min_length": 9,
                "decoding__max_length": 9,
                "data__max_length": 7,
                "model__modifications": ["learned_positions:length=8"],
            },
            "at least 9 tokens",
        ),
    ],
)
def test_a_mistake_in_how_to_decode_is_found_before_a_run_goes(run, mistake, words):
    refuse(run, words, **mistake)


def test_a_mistake_in_how_to_decode_is_found_for_language_models_too(tmp_path):
    (tmp_path / "text").write_text("some words\n" * 20)
    settings = {"model__kind": "decoder_only", "data__train": str(tmp_path / "text"), "data__valid": "null"}
    plain = {"data__tokenizer": "characters", "training__metric": "loss", "training__steps": 1, **settings}
    with pytest.raises(ValueError, match="forbidden words"):
        train(tiny.config(tmp_path, **plain, decoding__forbidden_words=[""]), tmp_path / "run", display=Quiet())
    assert not (tmp_path / "run").exists()
    assert train(tiny.config(tmp_path, **plain), tmp_path / "run", display=Quiet()).finished


@pytest.mark.parametrize(
    ("owner", "name"), [(Trainer, "save"), (checkpoint, "write"), (Trainer, "derive"), (Run, "begin")]
)
def test_until_the_new_run_is_on_disk_the_old_one_stays(run, owner, name):
    before = contents(run)
    with breaking_off_at(owner, name):
        train(config(run, training__seed=2), run.directory, overwrite=True, display=Quiet())
    assert contents(run) == before


def test_a_new_run_that_was_on_its_way_arrives_with_who_comes_next(run, monkeypatch):
    complete = Run.complete
    monkeypatch.setattr(Run, "complete", lambda run: broken_off() if run.arriving else complete(run))
    with pytest.raises(BrokenOffError):
        train(config(run, training__seed=2), run.directory, overwrite=True, display=Quiet())
    monkeypatch.undo()
    assert describe_run(run)["progress"]["steps"] == 4
    with pytest.raises(ValueError, match="holds a run"):
        train(config(run), run.directory, display=Quiet())
    assert resume(run.directory, display=Quiet()).finished
    assert run.read_config().training.seed == 2
    assert not [path for path in run.directory.iterdir() if "sixfold" in path.name]


def test_a_full_disk_while_a_run_is_replaced_costs_nothing(run, monkeypatch):
    before, save = contents(run), checkpoint.safetensors.torch.save_file

    def full(tensors, path, *rest):
        save(tensors, path, *rest)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        train(config(run), run.directory, overwrite=True, display=Quiet())
    assert contents(run) == before


# Damage ----------------------------------------------------------------------------------------------------------


def spoil(path, how):
    state = json.loads(path.read_text())
    early = {key: value for key, value in state.items() if key != "hash"}
    bytes_ = {
        "no UTF-8": path.read_bytes()[:-9] + b"\xff" * 9,
        "empty": b"",
        "a list": b"[]",
        "a number": path.read_bytes().replace(b'"step": 4', b'"step": 5', 1),
        **{f"no {key}": json.dumps({**early, key: None}).encode() for key in ("progress", "files", "step", "log")},
    }
    path.write_bytes(bytes_[how])


@pytest.mark.parametrize(
    "how", ["no UTF-8", "empty", "a list", "a number", "no progress", "no files", "no step", "no log"]
)
def test_a_damaged_state_is_passed_over(run, how):
    before, listener = tiny.bytes_of(run), Listener()
    spoil(run.training / "step-4" / "state.json", how)
    assert resume(run.directory, display=listener).finished
    assert re.search(r"step-4.* is (damaged|not as).*; step-2 is used", listener.words[0])
    assert tiny.bytes_of(run) == before


@pytest.mark.parametrize("average", [None, 2])
def test_a_state_damaged_while_training_is_no_hindrance(run, monkeypatch, average):
    step = Trainer.step

    def damaging(trainer):
        step(trainer)
        (trainer.run.training / "step-0" / "state.json").write_text(json.dumps({"format": checkpoint.FORMAT}))
        (trainer.run.training / "step-2" / "state.json").write_bytes(b"\xff") if trainer.progress.step == 3 else None

    monkeypatch.setattr(Trainer, "step", damaging)
    wanted = config(run, training__average=average, training__keep=3)
    assert train(wanted, run.directory.with_name("new"), display=Quiet()).finished


def test_an_early_checkpoint_without_hash_and_configuration_goes_on(run):
    path = run.training / "step-4" / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in state.items() if k not in ("hash", "config", "versions", "data")}))
    assert resume(run.directory, {"training.steps": "5"}, display=Quiet()).finished


@pytest.mark.parametrize("become", ["[]", "{", '{"hashes": 3}', None])
def test_without_run_json_the_checkpoint_knows_enough(run, become):
    known = run.read_about()
    if become is None:
        run.about.unlink()
    else:
        run.about.write_text(become)
    listener = Listener()
    assert resume(run.directory, {"training.steps": "5"}, display=listener).finished
    assert "written anew from what step-4 knows" in listener.words[0]
    assert {key: run.read_about()[key] for key in ("hashes", "report")} == {k: known[k] for k in ("hashes", "report")}


# What has changed --------------------------------------------------------------------------------------------------


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


def test_another_tokenizer_is_refused_before_the_text_is_made_anew(run, made, monkeypatch):
    other = tiny.config(made, data__tokenizer="{source: bytes, target: symbols}", **SHORT)
    with breaking_off_at(Trainer, "train"):
        train(other, run.directory.with_name("other"), display=Quiet())
    shutil.copy(run.directory.with_name("other") / "source.tokenizer.json", run.directory)
    before = contents(run)
    monkeypatch.setattr(runner, "prepare", broken_off)
    with pytest.raises(ValueError, match="step-4 was made with other tokenizers"):
        resume(run.directory, display=Quiet())
    assert contents(run) == before


@pytest.mark.parametrize(
    ("steps", "words"), [("null", "training.steps is null"), ("3", "training.steps is 3, but this run has done 4")]
)
def test_steps_that_cannot_be_gone_are_refused(run, steps, words):
    before = contents(run)
    with pytest.raises(ValueError, match=words):
        resume(run.directory, {"training.steps": steps}, display=Quiet())
    assert contents(run) == before


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
        rf"since step-4 was made: threads was \d+ and is 77; torch was {torch_then} and is 9\.9; "
        rf"training\.accumulate was 1 and is 2\. ",
        said,
    )


# The rest ----------------------------------------------------------------------------------------------------------


def test_until_a_validation_gives_a_number_the_model_is_the_latest(run, monkeypatch):
    new, listener = Run(run.directory.with_name("new")), Listener()
    monkeypatch.setattr(Validation, "_loss", lambda *_: (float("nan"), 1.0))
    train(config(run), new.directory, display=listener)
    assert any(f"{NO_BEST}, of step 4" in words for words in listener.words)
    weights = checkpoint.read(new.training / "step-4").tensors("model")
    assert all(
        torch.equal(tensor, weights[name]) for name, tensor in model_files.load(new.directory).state_dict().items()
    )
    described = describe_run(new)
    assert described["weights"] == {"step": 4, "why": NO_BEST}
    with (shown := console()).capture() as captured:
        shown.print(table_of(described))
    assert "of step 4: no validation has given a number" in " ".join(captured.get().split())
    monkeypatch.undo()
    resume(new.directory, {"training.steps": "6"}, display=Quiet())
    assert describe_run(new)["weights"] == {"step": 6, "why": "the best so far"}


def test_a_disk_that_is_full_of_tokens_says_so(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no device that is always full")
    for name in ("ids", "offsets"):
        (tmp_path / f"{name}.{name}").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left") as error, RowWriter(tmp_path, name, 9) as writer:
            writer.write([[5] * 9] * 9000)
        assert error.value.errno == errno.ENOSPC


def test_names_of_text_that_cannot_be_written_down_are_refused(run):
    folder = run.directory.parent / "b\udcff"
    folder.mkdir()
    for name in ("train.w", "train.r"):
        shutil.copy(run.directory.parent / name, folder)
    plain = config(run)
    data = plain.data.model_copy(update={"train": str(folder / "train")})
    before = contents(run)
    with pytest.raises(ValueError, match=r"b\\xff/train\.w is no UTF-8"):
        train(plain.model_copy(update={"data": data}), run.directory, overwrite=True, display=Quiet())
    assert contents(run) == before


@pytest.mark.parametrize(("rank", "error"), [("0", ValueError), ("1", SystemExit)])
def test_a_mistake_that_all_processes_find_is_said_by_the_first(monkeypatch, rank, error):
    monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(error), said_once():
        raise ValueError
