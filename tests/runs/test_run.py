"""A run's directory: what proves that it is one, and how a new run takes its place."""

import json
import sys
from pathlib import Path

import pytest

from sixfold.config.files import read_config
from sixfold.disk.atomic import sweep
from sixfold.disk.hashes import is_intact, quick_hash, with_hash
from sixfold.runs.run import LOCK, Run


def contents(run):
    return {
        str(path.relative_to(run.directory)): path.read_text() if path.is_file() else None
        for path in run.directory.rglob("*")
        if path.name != LOCK
    }


def write(run, words):
    """A run, as far as files are concerned."""
    run.begin(read_config(settings={"data.train": words}), {})
    for name in ("data", "training/step-0"):
        (run.directory / name).mkdir(parents=True)
        (run.directory / name / "file").write_text(words)
    (run.directory / "model.json").write_text(words)


@pytest.mark.parametrize("lock", [None, "", "process 3 on here", "mine"])
@pytest.mark.parametrize("config", [True, False])
def test_what_is_only_called_as_in_a_run_is_somebodys_work(tmp_path, config, lock):
    run = Run(tmp_path)
    for name in ("data", "training"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "corpus.txt").write_text("years of work")
    (tmp_path / "run.json").write_text('{"versions": {"theirs": 1}}')
    if config:
        run.config.write_text("data: {}")
    if lock is not None:
        (tmp_path / LOCK).write_text(lock)
    assert not run.proved()
    with pytest.raises(ValueError, match="is not a run, but holds"):
        run.need_room()
    with pytest.raises(ValueError, match="is not a run"):
        run.need_proved()


@pytest.mark.parametrize("leads_to", ["run", "gone"])
def test_a_link_that_leads_to_nothing_is_refused(tmp_path, leads_to):
    """To itself, or to a directory that does not exist."""
    (tmp_path / "run").symlink_to(leads_to)
    with pytest.raises(ValueError, match="run is a link that leads to nothing; remove it, or give another directory"):
        Run(tmp_path / "run").need_room()


def test_what_proves_a_run(tmp_path):
    run = Run(tmp_path)
    run.begin(read_config(), {})
    assert run.proved()
    run.about.write_text("[]")
    assert not run.proved()
    state = run.training / "step-3" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"format": "sixfold-checkpoint-1"}')
    assert run.proved()
    run.need_room()


@pytest.mark.parametrize(("text", "allowed"), [("", True), ("process 3 on here\n", True), ("my own lock", False)])
def test_where_a_beginning_broke_off_there_is_a_lock_and_what_was_aside(tmp_path, text, allowed):
    run = Run(tmp_path)
    run.draft.directory.mkdir()
    (tmp_path / LOCK).write_text(text)
    if allowed:
        run.need_room()
    else:
        with pytest.raises(ValueError, match="holds lock"):
            run.need_room()


def test_text_that_is_to_be_read_must_not_go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, elsewhere = Run("run"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "run" / "data").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "run" / "data")
    (tmp_path / "run" / "training").symlink_to(elsewhere)
    run.need_outside([Path("run/train.en"), Path("run/data.en"), Path("data/train.en")])
    for file in ("run/data/train.en", "link/train.en", "run/training/train.en", "elsewhere/train.en"):
        with pytest.raises(ValueError, match=r"train\.en is part of the data, but lies in"):
            run.need_outside([Path(file)])


def test_wherever_replacing_breaks_off_there_is_the_old_run_or_the_new_one(tmp_path, monkeypatch):
    """Each move in turn is the last that is made."""
    old, new, rename, outcomes = Run(tmp_path / "old"), Run(tmp_path / "new"), Path.rename, []
    write(old, "old")
    (old.directory / "tensorboard").mkdir()
    write(new, "new")
    for last in range(100):
        run, moves = Run(tmp_path / str(last)), 0

        def counted(path, target, last=last):
            nonlocal moves
            moves += 1
            if moves > last:
                raise InterruptedError
            return rename(path, target)

        write(run, "old")
        (run.directory / "tensorboard").mkdir()
        (run.directory / "notes.txt").write_text("mine")
        write(run.draft, "new")
        monkeypatch.setattr(Path, "rename", counted)
        broke_off = False
        try:
            run.replace_by_draft()
        except InterruptedError:
            broke_off = True
        monkeypatch.setattr(Path, "rename", rename)
        assert run.exists()
        assert run.proved()
        run.need_room()
        said = run.read_config().data.train
        run.complete()
        sweep(run.directory)
        assert (run.directory / "notes.txt").read_text() == "mine"
        (run.directory / "notes.txt").unlink()
        assert contents(run) == contents({"old": old, "new": new}[said])
        outcomes.append(said)
        if not broke_off:
            break
    assert outcomes == ["old"] + ["new"] * (len(outcomes) - 1)
    assert len(outcomes) > 10


def test_names_that_are_no_text_can_be_written_down(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sixfold", "train", "--out", "b\udcff", "ü"])
    run = Run(tmp_path / "run")
    run.begin(read_config(), {})
    assert json.loads(run.about.read_text(encoding="utf-8"))["command"][-2:] == ["b\\xff", "ü"]


def test_a_seal_tells_what_was_changed():
    record = with_hash({"a": [1, 0.1], "b": {"c": None}})
    read = json.loads(json.dumps(record))
    assert is_intact(read)
    assert with_hash(read) == read
    assert not is_intact({**read, "b": {}})
    assert not is_intact({key: read[key] for key in ("a", "hash")})
    assert is_intact({"a": 1})


def test_a_quick_hash_sees_the_size_both_ends_and_blocks_between(tmp_path):
    path, size = tmp_path / "large", 20 << 20
    path.write_bytes(bytes(size))
    before = quick_hash(path)
    for place in (0, size - 1, 31 * (size - (1 << 16)) // 63):
        with open(path, "r+b") as file:
            file.seek(place)
            file.write(b"x")
        assert quick_hash(path) != before
        path.write_bytes(bytes(size))
    assert quick_hash(path) == before
    path.write_bytes(bytes(size - 1))
    assert quick_hash(path) != before
