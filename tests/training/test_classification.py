"""A run that classifies: what validation says, what is on disk, and what becomes of tables that are wrong."""

import json
import math
import shutil
from pathlib import Path

import pytest

import sixfold as package
from sixfold.runs.run import Run
from sixfold.scoring.labels import label_report
from sixfold.text.corpus import open_prepared
from sixfold.text.labels import read_labels
from sixfold.text.tokenizer import Tokenizers
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import resume, train
from sixfold.verify.subject import VerifiedRun
from tests.support import labelled, tiny, two_terms
from tests.support.interrupting import assert_it_ends_as_left_alone
from tests.support.verified import ALONE, results

TRAIN, VALID = "train.tsv", "valid.tsv"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """It is not certain of everything: so that the scores are not all 100."""
    folder = labelled.tables(tmp_path_factory.mktemp("labelled"))
    train(labelled.config(folder), folder / "run", display=Quiet())
    return Run(folder / "run")


def valid_rows(run):
    lines = Path(run.directory.parent / VALID).read_text().splitlines()[1:]
    return [line.split("\t") for line in lines]


def test_score_refuses_a_metric_of_another_task(sixfold, original):
    code, out, err = sixfold("score", original.directory, "--part", "valid", "--metric", "bleu", "--device", "cpu")
    assert (code, out) == (2, "")
    assert "was trained for classification, which bleu does not measure; there are accuracy, macro_f1" in err


def best_line(run):
    return [record for record in run.records() if record["kind"] == "valid" and record["best"]][-1]


def test_validation_says_what_one_finds_by_asking(original):
    texts, truth = zip(*valid_rows(original), strict=True)
    found = package.load(original.directory).classify(texts)
    report = label_report([each.label for each in found], truth)
    line = best_line(original)
    assert line["accuracy"] == report.accuracy == 100 * sum(map(str.__eq__, (f.label for f in found), truth)) / 12
    assert 100 / 3 < report.accuracy < 100
    nats = sum(-math.log(each.probabilities[label]) for each, label in zip(found, truth, strict=True)) / 12
    assert line["loss"] == pytest.approx(nats, rel=1e-5)


def test_score_says_the_same(sixfold, original):
    code, out, err = sixfold("score", original.directory, "--part", "valid", "--json", "--device", "cpu")
    assert code == 0, err
    found = {score["name"]: score["value"] for score in json.loads(out)["scores"]}
    assert found == {name: best_line(original)[name] for name in ("accuracy", "macro_f1")}


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_command_line_says_what_python_says(sixfold, original, precision):
    texts = [text for text, _ in valid_rows(original)]
    Path("in.txt").write_text("".join(f"{text}\n" for text in texts))
    options = ["--format", "jsonl", "--device", "cpu", "--precision", precision, "--out", "out.jsonl"]
    code, _, err = sixfold("classify", original.directory, "in.txt", *options)
    assert code == 0, err
    found = package.load(original.directory).classify(texts, precision=precision)
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [line["label"] for line in lines] == [each.label for each in found]
    for line, each in zip(lines, found, strict=True):
        assert line["probabilities"] == pytest.approx(each.probabilities, abs=1e-6)
        assert sum(each.probabilities.values()) == pytest.approx(1)


def test_labels_are_on_disk_by_name(original):
    assert tuple(json.loads((original.directory / "labels.json").read_text())["labels"]) == labelled.LABELS
    assert package.load(original.directory).labels == labelled.LABELS
    config = original.read_config()
    assert (config.task, config.model.kind, config.model.classes) == ({"name": "classification"}, "encoder_only", 3)


def test_the_loss_falls(original):
    losses = [record["loss"] for record in original.records() if record["kind"] == "train"]
    assert losses[0] == pytest.approx(math.log(3), abs=0.4)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("task", ["classification", two_terms.two_terms.name])
def test_an_interrupted_one_ends_as_one_left_alone(tmp_path, monkeypatch, task):
    assert_it_ends_as_left_alone(labelled.config(labelled.tables(tmp_path), task=task), tmp_path, monkeypatch)


def test_verify_finds_nothing_wrong(original):
    found = results(original.directory)
    assert {key: each.note for key, each in found.items() if each.result == "fail"} == {}
    excused = {key for key, each in found.items() if each.result == "does not apply"}
    assert excused == {"cache", "export"}
    assert {key for key, each in found.items() if each.result == "pass"} == set(ALONE) - excused


def test_verify_samples_texts_and_not_labels(original, tmp_path):
    subject = VerifiedRun(original.directory, tmp_path, "cpu")
    texts = {text for text, _ in valid_rows(original)}
    assert {subject.tokenizers.target.decode(sample.target) for sample in subject.samples} == texts


def test_a_classifier_without_its_run_is_asked_for_labels(original, tmp_path):
    for name in ("model.json", "model.safetensors", "tokenizer.json", "labels.json"):
        shutil.copy(original.directory / name, tmp_path)
    text = valid_rows(original)[0][0]
    assert package.load(tmp_path).classify([text]) == package.load(original.directory).classify([text])
    assert VerifiedRun(tmp_path, tmp_path / "scratch", "cpu").task.name == "classification"


def relabel(run, **others):
    """Give the texts of some labels of the training table other ones, or none: then they are left out."""
    table = run.directory.parent / TRAIN
    rows = [line.split("\t") for line in table.read_text().splitlines()]
    rows = [(text, others.get(label, label)) for text, label in rows]
    table.write_text("".join(f"{text}\t{label}\n" for text, label in rows if label))


@pytest.fixture
def copied(original, tmp_path):
    return Run(tiny.copied(original.directory.parent, tmp_path) / "run")


def test_classes_keep_their_labels_when_the_data_change(copied):
    """Without "end", "middle" would be class 1: it must go on being class 2."""
    relabel(copied, end=None)
    (copied.directory.parent / VALID).write_text((copied.directory.parent / TRAIN).read_text())
    resume(copied.directory, {"training.steps": 31}, allow_changed_data=True, display=Quiet())
    prepared = open_prepared(copied.data, Tokenizers.load(copied.directory))
    assert prepared.labels == labelled.LABELS == tuple(read_labels(copied.directory))
    assert {*prepared.train.columns["label"].tolist()} == {0, 2}


def test_a_label_that_the_model_does_not_know_is_no_way_to_go_on(copied):
    relabel(copied, end="endd")
    with pytest.raises(ValueError, match=r"the label 'endd' does not occur in training; did you mean 'end'\?"):
        resume(copied.directory, {"training.steps": 31}, allow_changed_data=True, display=Quiet())
    assert open_prepared(copied.data, Tokenizers.load(copied.directory)).labels == labelled.LABELS


def test_labels_that_were_lost_are_written_again(copied):
    before = (copied.directory / "labels.json").read_bytes()
    (copied.directory / "labels.json").unlink()
    resume(copied.directory, {"training.steps": 31}, display=Quiet())
    assert (copied.directory / "labels.json").read_bytes() == before


def test_a_run_of_another_task_leaves_no_labels_behind(copied, tmp_path):
    train(tiny.short(tiny.corpus(tmp_path)), copied.directory, overwrite=True, display=Quiet())
    assert not (copied.directory / "labels.json").exists()


GOOD = "text\tlabel\nab\tbegin\nde\tmiddle\nba\tbegin\ned\tmiddle\n"


@pytest.mark.parametrize(
    ("train", "valid", "words"),
    [
        ("text\tlabel\nab\tbegin\nba\tbegin\n", GOOD, ["train.tsv", "'begin'"]),
        (GOOD, "text\tlabel\nab\tbegin\nde\tmidle\n", ["valid.tsv", "line 3", "did you mean 'middle'"]),
        ("text\tlabel\nab\tbegin\nde\n", GOOD, ["train.tsv", "line 3"]),
        ("text\tlabel\nab\tbegin\nde\t\n", GOOD, ["train.tsv", "line 3"]),
        (GOOD, "", ["valid.tsv", "empty"]),
    ],
    ids=["one class", "unknown label", "ragged row", "no label", "empty file"],
)
def test_bad_tables_get_one_sentence_and_leave_no_run(sixfold, tmp_path, train, valid, words):
    Path(TRAIN).write_text(train)
    Path(VALID).write_text(valid)
    options = [
        "--task",
        "classification",
        "--data.train",
        TRAIN,
        "--data.valid",
        VALID,
        "--data.tokenizer",
        "characters",
    ]
    code, out, err = sixfold("train", *options, "--training.steps", "2", "--training.device", "cpu", "--out", "run")
    assert (code, out) == (2, "")
    said = err.splitlines()[-1]
    assert all(word in said for word in words), err
    assert "Traceback" not in err
    assert {path.name for path in tmp_path.iterdir()} == {TRAIN, VALID}


def test_an_unclosed_quotation_mark_is_named_by_the_line_where_it_opens(sixfold, tmp_path):
    Path("train.csv").write_text('text,label\nab,begin\n"de,middle\ned,middle\n')
    options = ["--task", "classification", "--data.train", "train.csv", "--data.tokenizer", "characters"]
    code, _, err = sixfold("train", *options, "--training.steps", "2", "--training.device", "cpu", "--out", "run")
    assert (code, "train.csv" in err, "line 3" in err) == (2, True, True), err
    assert not Path("run").exists()


def test_how_many_classes_there_are_is_for_the_labels_to_say(tmp_path):
    with pytest.raises(ValueError, match=r"model\.classes is 3, but training sets it to the number of labels"):
        train(labelled.config(labelled.tables(tmp_path), model__classes=3), tmp_path / "run", display=Quiet())
    assert not (tmp_path / "run").exists()
