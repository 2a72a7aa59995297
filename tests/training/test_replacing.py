"""A new run in the place of an old one: the old one goes only when the new one is whole on disk."""

import errno
import shutil

import pytest

from sixfold.api.describe import describe_run
from sixfold.runs.run import Run
from sixfold.training import checkpoint
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import resume, train
from sixfold.training.store import Store
from sixfold.training.trainer import Trainer
from tests.support import tiny
from tests.support.breaking_off import BrokenOffError, breaking_off_at, broken_off, contents


def refuse(run, words, **settings):
    """Neither is anything lost of a run that was to be overwritten."""
    before = contents(run)
    with pytest.raises(ValueError, match=words):
        train(tiny.short(run.directory.parent, **settings), run.directory, overwrite=True, display=Quiet())
    assert contents(run) == before


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
    refuse(run, r"train\.w is part of the data, but lies in .*data", data__train=str(run.data / "train"))


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
    ("owner", "name"), [(Trainer, "save"), (checkpoint, "write"), (Store, "hand_out"), (Run, "begin")]
)
def test_until_the_new_run_is_on_disk_the_old_one_stays(run, owner, name):
    before = contents(run)
    with breaking_off_at(owner, name):
        train(tiny.short(run.directory.parent, training__seed=2), run.directory, overwrite=True, display=Quiet())
    assert contents(run) == before


def test_a_new_run_that_was_on_its_way_arrives_with_who_comes_next(run, monkeypatch):
    complete = Run.complete
    monkeypatch.setattr(Run, "complete", lambda run: broken_off() if run.arriving else complete(run))
    with pytest.raises(BrokenOffError):
        train(tiny.short(run.directory.parent, training__seed=2), run.directory, overwrite=True, display=Quiet())
    monkeypatch.undo()
    assert describe_run(run)["progress"]["steps"] == 4
    with pytest.raises(ValueError, match="holds a run"):
        train(tiny.short(run.directory.parent), run.directory, display=Quiet())
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
        train(tiny.short(run.directory.parent), run.directory, overwrite=True, display=Quiet())
    assert contents(run) == before


def test_names_of_text_that_cannot_be_written_down_are_refused(run):
    folder = run.directory.parent / "b\udcff"
    folder.mkdir()
    for name in ("train.w", "train.r"):
        shutil.copy(run.directory.parent / name, folder)
    plain = tiny.short(run.directory.parent)
    data = plain.data.model_copy(update={"train": str(folder / "train")})
    before = contents(run)
    with pytest.raises(ValueError, match=r"b\\xff/train\.w is not UTF-8"):
        train(plain.model_copy(update={"data": data}), run.directory, overwrite=True, display=Quiet())
    assert contents(run) == before
