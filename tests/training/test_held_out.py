"""Runs whose validation text was held out of their training text."""

import json
import shutil
from dataclasses import replace

import pytest

from sixfold.api.describe import describe_run
from sixfold.config.files import read_config
from sixfold.runs.run import Run
from sixfold.tasks import task as tasks
from sixfold.tasks.task import find_task
from sixfold.text.corpus import open_prepared
from sixfold.text.tokenizer import Tokenizers
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import prepare, resume, train
from tests.support import labelled, plain_text, tiny
from tests.support.begun_runs import adapted


def begun(folder, **settings):
    """A run of 12 steps without validation text; → it"""
    train(tiny.config(tiny.corpus(folder), data__valid="null", **settings), folder / "run", display=Quiet())
    return Run(folder / "run")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return begun(tmp_path_factory.mktemp("held_out"))


def validations(run):
    return [record for record in run.records() if record["kind"] == "valid"]


def test_it_is_validated_and_described(finished):
    assert [record["step"] for record in validations(finished)] == [6, 12]
    described = describe_run(finished)
    assert described["weights"]["why"] == "the best so far"
    parts = described["data"]["report"]["parts"]
    assert (parts["train"]["lines"], parts["valid"]["lines"]) == (50, 10)
    assert "10 of 60 pairs are held out" in described["data"]["report"]["remarks"][0]


def test_a_run_whose_prepared_text_was_lost_goes_on_with_the_same_division(finished, tmp_path):
    alone, damaged = (Run(tiny.copied(finished.directory.parent, tmp_path / name) / "run") for name in ("a", "b"))
    (damaged.data / "valid.source.ids").unlink()
    for run in (alone, damaged):
        resume(run.directory, {"training.steps": "18"}, display=Quiet())
    assert tiny.bytes_of(damaged) == tiny.bytes_of(alone)
    assert tiny.log_without_times(damaged) == tiny.log_without_times(alone)


def test_text_that_was_prepared_before_gives_the_same_run(finished, tmp_path):
    config = finished.read_config()
    prepared = prepare(config, tmp_path / "prepared")
    train(config, tmp_path / "new", prepared=prepared, display=Quiet())
    assert tiny.bytes_of(Run(tmp_path / "new")) == tiny.bytes_of(finished)
    other = config.model_copy(update={"data": config.data.model_copy(update={"seed": 2})})
    with pytest.raises(ValueError, match=r"data\.seed was 1 and is 2"):
        train(other, tmp_path / "other", prepared=prepared, display=Quiet())


def test_score_gives_the_number_of_the_log(finished, sixfold):
    best = [record for record in validations(finished) if record["best"]][-1]
    code, out, err = sixfold(
        "score", finished.directory, "--part", "valid", "--metric", "exact_match", "--device", "cpu"
    )
    assert code == 0, err
    assert f"{best['exact_match']:.2f}" in out


@pytest.mark.parametrize(("name", "divided_by"), [("translation", "target"), ("classification", None)])
def test_of_a_task_without_metrics_it_is_the_loss(sixfold, tmp_path, monkeypatch, name, divided_by):
    monkeypatch.setitem(tasks._registered, "quiet", replace(find_task(name), name="quiet", metrics=(), answers=None))
    own = {"training__steps": 2, "training__metric": "loss", "task": "quiet"}
    settings = labelled.settings(labelled.tables(tmp_path)) if name == "classification" else {}
    train(tiny.config(tiny.corpus(tmp_path), **{**settings, **own}), tmp_path / "run", display=Quiet())
    code, out, err = sixfold("score", tmp_path / "run", "--part", "valid", "--device", "cpu", "--json")
    assert code == 0, err
    found = json.loads(out)
    written = (tmp_path / "valid.r").read_text().replace("\n", "") if divided_by else ""
    assert found["bytes"] == len(written.encode())
    assert ("bits_per_byte" in found) == (divided_by is not None)


def test_of_a_language_model_too_also_without_the_files(sixfold, tmp_path):
    plain_text.texts(tmp_path)
    settings = plain_text.settings(
        tmp_path, data__valid="null", data__held_out=0.2, model__kind="decoder_only", training__steps=8
    )
    train(tiny.config(tmp_path, **settings), tmp_path / "run", display=Quiet())
    (tmp_path / "train.txt").unlink()
    best = [record for record in validations(Run(tmp_path / "run")) if record["best"]][-1]
    code, out, err = sixfold("score", tmp_path / "run", "--part", "valid", "--device", "cpu")
    assert code == 0, err
    assert out.startswith(f"loss {best['loss']:.4f}\n")
    assert "bits_per_byte" in out
    shutil.rmtree(tmp_path / "run" / "data")
    code, out, err = sixfold("score", tmp_path / "run", "--part", "valid", "--device", "cpu")
    assert (code, out) == (2, "")
    assert "has no data.valid to score" in err


def test_a_classifier_is_validated_on_each_label(tmp_path):
    config = labelled.config(labelled.tables(tmp_path, number=120), data__valid="null")
    train(config, tmp_path / "run", display=Quiet())
    prepared = open_prepared(tmp_path / "run" / "data", Tokenizers.load(tmp_path / "run"))
    assert {reference.targets[0] for reference in prepared.references} == set(labelled.LABELS)
    assert "accuracy" in validations(Run(tmp_path / "run"))[0]


def test_a_run_that_begins_with_another_holds_out_too(finished, tmp_path):
    new, said = adapted(finished.directory, tmp_path / "new", {"data.train": str(finished.directory.parent / "train")})
    assert any("10 of 60 pairs are held out" in line for line in said)
    assert new.read_config().training.metric == "exact_match"


def test_a_run_of_before_goes_on_without_validation(tmp_path):
    run = begun(tmp_path, data__held_out=0, training__metric="loss")
    for path in (run.config, *run.training.glob("*/state.json"), run.data / "index.json"):
        forget_held_out(path)
    assert run.read_config().data.held_out == 0
    (run.data / "train.source.ids").unlink()
    resume(run.directory, {"training.steps": "14"}, display=Quiet())
    assert not validations(run)
    assert describe_run(run)["weights"]["why"] == "there is no validation data"


def forget_held_out(path):
    """As a version without data.held_out wrote it."""
    if path.suffix == ".yaml":
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not line.startswith(("  held_out:", "  seed: 1"))))
        return
    import json

    from sixfold.disk.hashes import with_hash

    tree = json.loads(path.read_text())
    section = tree["config"]["data"] if "config" in tree else tree["data"]
    for key in ("held_out", "seed"):
        section.pop(key)
    path.write_text(json.dumps(with_hash(tree), indent=2) + "\n")


def test_a_recipe_with_too_little_text_trains_without_validation(tmp_path):
    (tmp_path / "own.tsv").write_text("".join(f"{'ab' * n}\t{'A B ' * n}\n" for n in range(1, 9)))
    small = {"model.d_model": 16, "model.d_ff": 32, "model.heads": 2, "model.layers": 1, "training.steps": 2}
    config = read_config("pronounce", {"data.train": str(tmp_path / "own.tsv"), "training.device": "cpu", **small})
    outcome = train(config, tmp_path / "run", display=Quiet())
    assert outcome.finished
    assert outcome.best is None
