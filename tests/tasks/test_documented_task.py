"""The programs of docs/tasks.md do what the page says."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import sixfold
from sixfold.core.ids import EOS, PAD, UNK
from sixfold.tasks import task as tasks
from sixfold.text.arrays import Examples, Ragged, RowRange
from sixfold.text.rows import Rows, random_keys
from tests.support.documented_tasks import PAGE, program

SMALL = {
    "data.vocabulary": 300,
    "data.tokenizer": "words",
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.heads": 2,
    "model.layers": 1,
    "training.batch_tokens": 64,
    "training.validate_every": 2,
    "training.log_every": 1,
}


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch):
    monkeypatch.setattr(tasks, "_registered", dict(tasks.all_tasks()))


@pytest.fixture(name="noisy")
def _noisy(tmp_path):
    file = tmp_path / "my_task.py"
    file.write_text(program("noisy_translation"), encoding="utf-8")
    sixfold.import_file(file)
    return tasks.find_task("noisy_translation")


def some_rows(count: int) -> Rows:
    """Rows of 1, 2, 3, … source words, each 7, and of as many target words, each 8."""
    offsets = np.cumsum([0, *range(1, count + 1)])
    sides = [Ragged(np.full(offsets[-1], word, np.uint16), offsets) for word in (7, 8)]
    index = np.arange(count)
    return Rows(Examples(*sides, (RowRange(count, 1.0),)), index, random_keys(1, 0, index), 20)


def test_words_of_the_source_are_hidden_and_nothing_else(noisy):
    source = noisy.with_options({"share": "1"}).batch(some_rows(3)).source
    assert source.tolist() == [[UNK, EOS, PAD, PAD], [UNK, UNK, EOS, PAD], [UNK, UNK, UNK, EOS]]
    batch, plain = noisy.with_options({"share": "0"}).batch(some_rows(3)), tasks.find_task("translation")
    assert torch.equal(batch.source, plain.batch(some_rows(3)).source)
    assert batch.counts == {"words": 9, "size": 9}  # 1 + 2 + 3 words, and three ends


def test_a_batch_of_no_rows_counts_nothing(noisy):
    rows = some_rows(3)
    none = replace(rows, index=rows.index[:0], keys=rows.keys[:0])
    batch = noisy.batch(none)
    assert (batch.counts, batch.source.tolist()) == ({"words": 0, "size": 0}, [[EOS]])


def test_the_main_term_is_that_of_translation_and_the_other_the_mean_square_of_the_states(noisy):
    plain = tasks.find_task("translation")
    sizes = sixfold.Sizes(vocab=20, d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1)
    model = sixfold.build(sizes, seed=1).eval()
    batch = noisy.with_options({"share": "0"}).batch(some_rows(1))  # one row without padding
    terms = model(batch, noisy.terms)
    assert torch.equal(terms["words"].sum, model(batch, plain.terms)["words"].sum)
    states = model.read(batch).x
    assert terms["size"].shown.item() == pytest.approx((states**2).sum().item() / 8)
    assert terms["size"].sum.item() == pytest.approx(0.01 * terms["size"].shown.item())
    heavier = model(batch, noisy.with_options({"weight": "0.5"}).terms)["size"]
    assert heavier.sum.item() == pytest.approx(0.5 * terms["size"].shown.item())


def test_its_experts_are_balanced(noisy):
    """The term is that of translation; without experts there is none."""
    sizes = sixfold.Sizes(vocab=20, d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1, dropout=0)
    batch = noisy.with_options({"share": "0"}).batch(some_rows(3))
    for modifications, expected in (([], False), (["switch:experts=2,every=1,jitter=0"], True)):
        model = sixfold.build(sizes, modifications, seed=1)
        mine, plain = (model(batch, task.terms) for task in (noisy, tasks.find_task("translation")))
        assert ("auxiliary" in mine) == ("auxiliary" in plain) == expected
        assert not expected or torch.equal(mine["auxiliary"].sum, plain["auxiliary"].sum)


def test_it_trains_by_the_command_of_the_page(noisy, sixfold_command, tmp_path):
    for name in ("train", "dev"):
        (tmp_path / f"{name}.en").write_text("red house\nold red tree\n" * 4)
        (tmp_path / f"{name}.de").write_text("rotes Haus\nalter roter Baum\n" * 4)
    small = [word for key, value in {**SMALL, "training.steps": 2}.items() for word in (f"--{key}", str(value))]
    text = ["--data.train", "train", "--data.valid", "dev", "--data.source", "en", "--data.target", "de"]
    task = ["--import", "my_task.py", "--task", "noisy_translation:share=0.2"]
    code, _, err = sixfold_command("train", *task, *text, *small, "--out", "noisy")
    assert code == 0, err
    log = [json.loads(line) for line in (tmp_path / "noisy" / "log.jsonl").read_text().splitlines()]
    assert all(line["size_loss"] > 0 for line in log if line["kind"] in ("train", "valid"))
    assert sixfold.read_config(tmp_path / "noisy" / "config.yaml").task == {
        "name": "noisy_translation",
        "share": 0.2,
        "weight": 0.01,
    }


@pytest.fixture(name="sixfold_command")
def _sixfold_command(sixfold):
    return sixfold  # the name is taken by the module


@pytest.mark.parametrize(("which", "runs"), [("Slowest", ["lm"]), ("prepared=text", ["seed-1", "seed-2", "seed-3"])])
def test_the_programs_that_train_run(which, runs, tmp_path, monkeypatch):
    """With a smaller model, and fewer steps."""
    (tmp_path / "my.txt").write_text("red house and old tree\n" * 30)
    (tmp_path / "other.txt").write_text("old house\n" * 5)
    monkeypatch.chdir(tmp_path)
    read = sixfold.read_config
    monkeypatch.setattr(
        sixfold, "read_config", lambda name, values: read(name, {**values, **SMALL, "training.steps": 2}), raising=False
    )
    exec(compile(program(which), str(PAGE), "exec"), {})
    assert all((tmp_path / "runs" / run / "model.safetensors").is_file() for run in runs)
