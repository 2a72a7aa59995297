"""What a run makes of files that were damaged, lost or changed since it was last at work."""

import json
import os
import shutil

import pytest

from sixfold.disk.atomic import STAGED, StagedFiles, new_directory, sweep
from sixfold.disk.hashes import with_hash
from sixfold.runs.run import Run
from sixfold.training import checkpoint, runner
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import resume, train
from sixfold.training.trainer import Trainer
from sixfold.training.validation import Validation
from tests.support import tiny
from tests.support.breaking_off import BrokenOffError, Listener, breaking_off_at, contents


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A corpus, and a run of six steps on it, the fourth of which was the best."""
    folder = tiny.corpus(tmp_path_factory.mktemp("made"))
    config = tiny.config(
        folder, training__steps=6, training__checkpoint_every=2, training__validate_every=4, training__metric="loss"
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Validation, "is_better", lambda self, scores, best, *rest: best is None)
        train(config, folder / "run", display=Quiet())
    return folder


@pytest.fixture
def run(made, tmp_path):
    """The same, with a corpus of its own."""
    return Run(tiny.copied(made, tmp_path) / "run")


def damage(path):
    os.truncate(path, path.stat().st_size - 1)


def names(run):
    return [place.name for place in checkpoint.checkpoints_in(run.training)]


def test_a_checkpoint_just_written_is_kept_whatever_the_future_was(run):
    damage(run.training / "step-6" / "model.safetensors")
    resume(run.directory, {"training.steps": "5", "training.keep": "1"}, display=Quiet())
    assert names(run) == ["step-5", "step-4"]


def test_what_pruning_would_have_done_is_done_on_resuming(run):
    shutil.copytree(run.training / "step-4", run.training / "step-2")
    resume(run.directory, display=Quiet())
    assert names(run) == ["step-6", "step-4"]


def test_without_a_whole_checkpoint_nothing_is_touched(run):
    for weights in run.training.glob("*/model.safetensors"):
        damage(weights)
    before, listener = contents(run), Listener()
    with pytest.raises(ValueError, match=r"step-6.*step-4.*--overwrite"):
        resume(run.directory, {"training.steps": "8"}, display=listener)
    assert contents(run) == before
    assert listener.words == []


@pytest.mark.parametrize("become", [damage, os.remove])
def test_the_best_model_is_made_again_from_its_checkpoint(run, become):
    weights = run.directory / "model.safetensors"
    before = weights.read_bytes()
    become(weights)
    resume(run.directory, display=Quiet())
    assert weights.read_bytes() == before


def test_a_damaged_best_checkpoint_is_reported_and_its_model_kept(run):
    damage(run.training / "step-4" / "model.safetensors")
    before, listener = (run.directory / "model.safetensors").read_bytes(), Listener()
    resume(run.directory, display=listener)
    assert "step-4" in listener.words[0]
    assert (run.directory / "model.safetensors").read_bytes() == before


def test_changed_data_that_were_allowed_once_stay_so(run):
    for side in ("w", "r"):
        path = run.directory.parent / f"train.{side}"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:9]))
    more = {"training.steps": "7"}
    with breaking_off_at(Trainer, "train"):
        resume(run.directory, more, allow_changed_data=True, display=Quiet())
    assert resume(run.directory, more, display=Quiet()).finished


def test_a_checkpoint_belongs_to_its_tokenizers(run):
    place = run.training / "step-6" / "state.json"
    state = checkpoint.read_state(place.parent)
    state["data"]["tokenizers"][0] = "0" * 64
    place.write_text(json.dumps(with_hash(state)))
    before = contents(run)
    with pytest.raises(ValueError, match="step-6 was written with other tokenizers"):
        resume(run.directory, display=Quiet())
    assert contents(run) == before


def test_prepared_text_is_prepared_again_as_it_was(run, monkeypatch):
    ids = run.data / "train.target.ids"
    before = ids.read_bytes()
    damage(ids)
    resume(run.directory, display=Quiet())
    assert ids.read_bytes() == before
    shutil.rmtree(run.data)
    monkeypatch.setattr(runner, "data_hashes", lambda *_: (_ for _ in ()).throw(ValueError("no file train.w")))
    with pytest.raises(ValueError, match="must exist unchanged"):
        resume(run.directory, display=Quiet())


def test_a_directory_that_was_being_replaced_comes_back(tmp_path, monkeypatch):
    place, renamed = tmp_path / "step-10", []
    rename = type(place).rename
    with new_directory(place) as aside:
        (aside / "old").touch()

    def killed(path, target):
        renamed.append(path)
        if len(renamed) == 2:
            raise BrokenOffError
        return rename(path, target)

    monkeypatch.setattr(type(place), "rename", killed)
    with pytest.raises(BrokenOffError), new_directory(place):
        pass
    assert not place.exists()
    sweep(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["step-10", "old"]


def test_whatever_names_a_writer_uses_all_that_is_unfinished_is_aside(tmp_path):
    def write(path):
        path.with_name(".tmp-of-its-own").touch()
        path.touch()
        assert all(found.name.startswith(STAGED) for found in tmp_path.iterdir())

    with StagedFiles(tmp_path) as aside:
        aside.write("model", write)
    assert [path.name for path in tmp_path.rglob("*")] == ["model"]
