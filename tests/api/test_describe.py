"""What `sixfold info` says of runs in every state."""

import json
import os

import pytest
from rich.console import Console

from sixfold import Sizes, build
from sixfold.api.describe import describe_run, seconds_spent, table_of
from sixfold.config.files import read_config
from sixfold.runs import model_files
from sixfold.runs.run import Run

SETTINGS = {
    "data.train": "corpus/train",
    "data.valid": "[corpus/dev, {path: more.tsv, weight: 2}]",
    "data.vocabulary": "20",
    "model.d_model": "16",
    "model.d_ff": "32",
    "model.heads": "2",
    "model.layers": "1",
    "training.steps": "400",
}


REPORT = {"limit": 256, "parts": {"train": {"lines": 90, "rows": 80}, "test": {"lines": 70, "rows": None}}}


def train(step, seconds):
    return {
        "kind": "train",
        "step": step,
        "epoch": 1,
        "loss": 1.0,
        "perplexity": 2.718,
        "learning_rate": 0.001,
        "gradient": 0.5,
        "tokens": step * 90,
        "padding": 0.01,
        "seconds": seconds,
    }


def valid(step, bleu, best):
    return {"kind": "valid", "step": step, "best": best, "loss": 1.5, "perplexity": 4.48, "bleu": bleu}


RECORDS = [train(50, 5.0), train(100, 10.0), valid(100, 12.0, True), train(150, 3.0), valid(200, 11.0, False)]


def model():
    sizes = Sizes(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1, vocab=20)
    return build(sizes, ["rotary:base=100"], seed=1)


@pytest.fixture
def run(tmp_path):
    """One that was left alone in the middle: a model, a log, a checkpoint."""
    made = Run(tmp_path / "mine")
    made.begin(read_config(settings=SETTINGS), {"hashes": {"corpus/train": "abc"}, "report": REPORT})
    model_files.save(model(), made.directory)
    made.log.write_text("".join(json.dumps(record) + "\n" for record in RECORDS) + '{"kind": "tr')
    (made.training / "step-100").mkdir(parents=True)
    return made


def shown(described):
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(table_of(described))
    return console.export_text()


def test_all_that_is_known_of_a_run(run):
    described = describe_run(run)
    assert described["model"]["kind"] == "encoder_decoder"
    assert described["model"]["modifications"] == [{"rotary": {"base": 100.0}}]
    assert described["model"]["parameters"] == sum(p.numel() for p in model().parameters())
    assert described["data"]["train"] == ["corpus/train"]
    assert described["data"]["valid"] == ["corpus/dev", "more.tsv × 2"]
    assert described["data"]["report"] == REPORT
    assert described["progress"]["step"] == 200
    assert described["progress"]["steps"] == 400
    assert described["progress"]["tokens"] == 150 * 90
    assert described["progress"]["checkpoints"] == [100]
    assert (described["best"]["metric"], described["best"]["value"], described["best"]["step"]) == ("bleu", 12.0, 100)
    assert described["writer"] is None
    assert json.loads(json.dumps(described, allow_nan=False)) == described


def test_a_run_that_broke_off_says_how_to_go_on(run):
    text = shown(describe_run(run))
    assert f"interrupted; sixfold train --resume {run.directory} continues from step 100" in text
    assert "200 of 400 steps (50.0%), epoch 1, 13,500 target tokens in 0:00:13" in text
    assert "bleu 12 at step 100 (loss 1.500, perplexity 4.480)" in text
    assert "train 80, test 70" in text
    assert "1 + 1 layers, d_model 16, d_ff 32, 2 heads of 8" in text


def test_a_run_that_stopped_says_why(run):
    with open(run.log, "r+", encoding="utf-8") as file:
        text = file.read()
        file.seek(text.rindex("\n") + 1)
        file.truncate()
        file.write(json.dumps({"kind": "stopped", "step": 400, "reason": "all 400 steps are done"}) + "\n")
    assert "stopped: all 400 steps are done" in shown(describe_run(run))


def test_whether_it_is_being_trained_is_what_the_lock_says(run):
    with run.locked():
        described = describe_run(run)
    assert described["writer"].startswith("process ")
    assert "being trained by process" in shown(described)
    assert describe_run(run)["writer"] is None


def test_looking_does_not_hinder_the_next_writer(run):
    with run.locked():
        describe_run(run)
    assert describe_run(run)["writer"] is None
    with run.locked():
        assert f"process {os.getpid()}" in describe_run(run)["writer"]


def test_a_run_that_has_just_begun(tmp_path):
    run = Run(tmp_path / "new")
    run.begin(read_config(settings=SETTINGS), {})
    described = describe_run(run)
    assert described["best"] is None
    assert described["progress"]["step"] == 0
    text = shown(described)
    assert "continues from the beginning" in text
    assert "0 of 400 steps (0.0%)" in text


def test_a_run_that_is_still_being_prepared(tmp_path):
    run = Run(tmp_path / "new")
    with run.locked():
        assert "being prepared by process" in shown(describe_run(run))


def test_a_model_directory_is_no_run_but_a_model(tmp_path):
    model_files.save(model(), tmp_path)
    described = describe_run(Run(tmp_path))
    assert "progress" not in described
    text = shown(described)
    assert "a model without its run" in text
    assert "rotary:base=100.0" in text


def test_a_run_whose_modification_is_not_here_is_described_all_the_same(run):
    path = run.directory / "model.json"
    path.write_text(path.read_text().replace("rotary", "my_own"))
    text = shown(describe_run(run))
    assert "my_own" in text
    assert "--import" in text
    assert "200 of 400 steps" in text


@pytest.mark.parametrize("line", [b"[1]", b'{"kind": "train"}', b'{"step": 3}', b"\xff", b'"\xff"'])
def test_a_damaged_line_of_the_log_is_named(run, line):
    run.log.write_bytes(json.dumps(RECORDS[0]).encode() + b"\n" + line + b"\n")
    with pytest.raises(ValueError, match=r"log\.jsonl, line 2 is damaged"):
        describe_run(run)


@pytest.mark.parametrize("text", ["{", "[1]", "\udcff"])
def test_a_run_whose_notes_are_damaged_is_described_all_the_same(run, text):
    run.about.write_bytes(text.encode("utf-8", "surrogateescape"))
    described = describe_run(run)
    assert described["progress"]["step"] == 200
    assert "run.json can't be read" in shown(described)


def test_directories_that_are_neither(tmp_path):
    with pytest.raises(ValueError, match="neither a run nor a model"):
        describe_run(Run(tmp_path))
    with pytest.raises(ValueError, match="there is no directory"):
        describe_run(Run(tmp_path / "nowhere"))


def test_seconds_are_summed_over_the_processes_of_a_run():
    assert seconds_spent([{"seconds": s} for s in (5, 10, 3, 9, 2)]) == 10 + 9 + 2


def test_names_of_files_cannot_drive_the_terminal(tmp_path):
    run = Run(tmp_path / "new")
    run.begin(read_config(settings={**SETTINGS, "data.train": '"a\\e[31mb"'}), {})
    text = shown(describe_run(run))
    assert "a\\x1b[31mb" in text
    assert "\x1b" not in text
