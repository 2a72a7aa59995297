"""Named pipes, devices, directories and loops of links where a file is expected: nothing waits, all is a sentence."""

import json
import os
import signal

import pytest

from sixfold.disk.atomic import new_directory, remove_directory, sync
from sixfold.disk.hashes import file_hash, quick_hash
from sixfold.disk.reading import read_bytes, regular_file
from sixfold.runs.run import Run
from sixfold.spec.registry import import_file
from sixfold.training import checkpoint
from sixfold.training.observers.log import Log
from tests.support.runs import translating

PUT = {
    "pipe": os.mkfifo,
    "device": lambda path: os.symlink("/dev/zero", path),
    "directory": os.mkdir,
    "loop": lambda path: os.symlink(os.path.basename(path), path),
}
EVERY_KIND = pytest.mark.parametrize("kind", PUT)


@pytest.fixture(autouse=True)
def _not_waiting():
    """Who waits for a pipe is woken, and fails."""

    def wake(*_):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, wake)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def run(tmp_path):
    return Run(translating(tmp_path / "run"))


def put(kind, path):
    path.unlink(missing_ok=True)
    PUT[kind](path)


@EVERY_KIND
def test_only_ordinary_files_are_opened(tmp_path, kind):
    path = tmp_path / "it"
    put(kind, path)
    for act in (
        lambda: os.close(regular_file(str(path), os.O_RDONLY)),
        lambda: os.close(regular_file(str(path), os.O_WRONLY | os.O_APPEND)),
        lambda: read_bytes(path, 9),
        lambda: file_hash(path),
        lambda: quick_hash(path),
    ):
        with pytest.raises(OSError, match=str(path)):
            act()
    if kind == "pipe":
        with pytest.raises(OSError, match="this is a named pipe, not a regular file"):
            read_bytes(path, 9)
        with pytest.raises(OSError, match="Invalid argument"):
            sync(path)


def test_a_link_to_a_file_is_a_file(tmp_path):
    (tmp_path / "it").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("it")
    assert read_bytes(tmp_path / "link", 3) == b"abc"
    with pytest.raises(ValueError, match="it has more than 2 bytes"):
        read_bytes(tmp_path / "link", 2)


FILES = ("config.yaml", "model.json", "model.safetensors", "tokenizer.json", "log.jsonl", "run.json", "lock")
PLACES = [("pipe", name) for name in FILES] + [
    *(("loop", name) for name in ("config.yaml", "model.json", "log.jsonl", "lock")),
    *(("device", name) for name in ("log.jsonl", "run.json")),
    *(("directory", name) for name in ("config.yaml", "model.safetensors")),
]


@pytest.mark.parametrize(("kind", "name"), PLACES)
def test_no_verb_waits_for_what_is_in_the_place_of_a_file_of_a_run(run, sixfold, name, kind):
    put(kind, run.directory / name)
    (run.directory.parent / "in.txt").write_text("abc\n")
    for arguments in (
        ("info", run.directory),
        ("info", run.directory, "--json"),
        ("translate", run.directory, "in.txt"),
        ("plot", run.directory),
        ("verify", run.directory, "--only", "weights", "--only", "checkpoints"),
        ("train", "--resume", run.directory),
    ):
        code, out, err = sixfold(*arguments)
        assert code in (0, 1, 2)
        assert code == 0 or err.startswith("sixfold: ") or "fail" in out  # what `verify` says is in its table
    if name == "log.jsonl" and kind != "loop":  # a link that leads nowhere is no log yet
        assert sixfold("info", run.directory)[0] == 1


@EVERY_KIND
def test_what_is_in_the_place_of_run_json_is_named_by_every_verb(run, sixfold, kind):
    """It says how config.yaml is to be read. Without it, the run can be used."""
    put(kind, run.about)
    (run.directory.parent / "in.txt").write_text("abc\n")
    verbs = (("info", run.directory), ("translate", run.directory, "in.txt"), ("score", run.directory))
    for arguments in verbs:
        code, out, err = sixfold(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith(f"sixfold: {run.about} is not a regular file or a link to one; remove it")
    remove_directory(run.about)
    assert [sixfold(*arguments)[0] for arguments in verbs[:2]] == [0, 0]


@EVERY_KIND
def test_nothing_is_appended_to_what_is_no_log(run, kind):
    put(kind, run.log)
    with pytest.raises(OSError, match=r"log\.jsonl"):
        Log(run).record({"kind": "train", "step": 1, "loss": 1.0})


@EVERY_KIND
@pytest.mark.parametrize("name", ["state.json", "model.safetensors", ""])
def test_what_is_in_the_place_of_a_checkpoint_is_damage(tmp_path, kind, name):
    import torch

    state = {"progress": {}, "batches": {}, "guard": {}, "log": 0, "processes": 1}
    for step in (1, 2):
        checkpoint.write(tmp_path / f"step-{step}", {**state, "step": step}, {"model": {"x": torch.zeros(2)}})
    if name:
        put(kind, tmp_path / "step-2" / name)
    else:
        remove_directory(tmp_path / "step-2")
        put(kind, tmp_path / "step-2")
    damage, whole = checkpoint.latest(tmp_path)
    assert isinstance(damage, checkpoint.DamagedError)
    assert "step-2" in str(damage)
    assert whole.step == 1


@EVERY_KIND
def test_whatever_is_in_the_place_of_a_directory_is_replaced_or_refused(tmp_path, kind):
    place = tmp_path / "place"
    put(kind, place)
    try:
        with new_directory(place) as folder:
            (folder / "new").write_text("new")
    except OSError:
        assert kind in ("device", "loop")  # a link stays, and what it leads to can't be replaced
    else:
        assert (place / "new").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["place"]
    remove_directory(place)
    assert not list(tmp_path.iterdir())


def test_a_loop_in_a_run_does_not_keep_it_from_being_replaced(run, tmp_path):
    (tmp_path / "text").write_text("a\n")
    for name in ("data", "training", "log.jsonl"):
        put("loop", run.directory / name)
    run.need_outside([tmp_path / "text"])
    put("loop", tmp_path / "loop")
    run.need_outside([tmp_path / "loop"])
    with pytest.raises(ValueError, match="is part of the data, but lies in"):
        run.need_outside([run.directory / "data"])


@pytest.mark.parametrize("name", ["loop.py", "loop.py/deeper.py"])
def test_a_loop_cannot_be_imported(tmp_path, name):
    put("loop", tmp_path / "loop.py")
    with pytest.raises(ValueError, match=r"there is no file .*\.py to import"):
        import_file(tmp_path / name)


def test_loops_on_the_command_line_are_sentences(run, tmp_path, sixfold):
    put("loop", tmp_path / "a")
    put("loop", tmp_path / "a.py")
    put("loop", tmp_path / "t.tsv")
    (tmp_path / "in.txt").write_text("abc\n")
    for arguments in (
        *((verb, "a") for verb in ("info", "translate", "score", "plot", "verify", "bench")),
        ("train", "--resume", "a"),
        ("train", "--from", "a", "--out", "new"),
        ("train", "--out", "a"),
        ("train", "--out", "a/b"),
        ("train", "a"),
        ("train", "--data.train", "t.tsv", "--out", "new"),
        ("count", "--import", "a.py"),
        ("verify", run.directory, "--import", "a.py"),
        ("translate", run.directory, "a"),
        ("translate", run.directory, "in.txt", "--out", "a"),
        ("translate", run.directory, "in.txt", "--terms", "a"),
        ("plot", run.directory, "--out", "a/b.png"),
        ("export", run.directory, "--to", "safetensors", "--out", "a"),
        ("export", run.directory, "--to", "safetensors", "--out", "a/b"),
        ("score", "--hyp", "a", "--ref", "a"),
        ("prepare", "libreoffice", "--source=en", "--target=de", "--out=n", "--source-deb=a", "--target-deb=a"),
    ):
        code, out, err = sixfold(*arguments)
        assert (code in (1, 2), out) == (True, ""), arguments
        assert err.startswith("sixfold: "), arguments
    assert {path.name for path in tmp_path.iterdir()} == {"a", "a.py", "t.tsv", "in.txt", "run"}


def test_a_pipe_is_no_package(tmp_path, sixfold):
    put("pipe", tmp_path / "a.deb")
    arguments = ("--source", "en", "--target", "de", "--out", "n", "--source-deb", "a.deb", "--target-deb", "a.deb")
    code, _, err = sixfold("prepare", "libreoffice", *arguments)
    assert (code, err) == (1, "sixfold: this is a named pipe, not a regular file: a.deb\n")


def test_a_log_that_never_ends_a_line_is_damaged(run, monkeypatch):
    monkeypatch.setattr("sixfold.runs.run._LONGEST_RECORD", 64)
    line = json.dumps({"kind": "train", "step": 1}) + "\n"
    run.log.write_text(line + "x" * 20)
    assert [record["step"] for record in run.records()] == [1]  # a torn line is left out
    run.log.write_text(line + "x" * 100)
    with pytest.raises(ValueError, match=r"log\.jsonl, line 2 is damaged"):
        list(run.records())


@pytest.mark.parametrize(
    ("name", "words"),
    [("config.yaml", "config.yaml is not a regular file"), ("model.json", "no model.json that is a regular file")],
)
def test_a_loop_in_the_place_of_a_file_is_named(run, sixfold, name, words):
    path = run.directory / name
    path.unlink()
    path.symlink_to(path.name)
    (run.directory.parent / "in.txt").write_text("abc\n")
    code, _, err = sixfold("translate", run.directory, "in.txt")
    assert (code, words in err) == (2, True)
