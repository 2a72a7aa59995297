"""`Task.before` rewrites a batch before the model's forward: here, by the model's own words."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from sixfold.core.batch import Batch
from sixfold.core.ids import BOS
from sixfold.runs.run import Run
from sixfold.tasks import task as tasks
from sixfold.text.arrays import Examples, Ragged, RowRange
from sixfold.text.rows import Rows, random_keys
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import train
from sixfold.training.trainer import Trainer
from tests.support.documented_tasks import own_words
from tests.support.interrupting import assert_it_ends_as_left_alone
from tests.support.plain_text import recipe
from tests.support.small import VOCAB, moved_model


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch):
    monkeypatch.setattr(tasks, "_registered", tasks.all_tasks())


def rows(number, length):
    ids = np.random.default_rng(0).integers(5, VOCAB, number * length).astype(np.uint16)
    index = np.arange(number)
    text = Ragged(ids, np.arange(number + 1) * length)
    return Rows(Examples(None, text, (RowRange(number, 1.0),)), index, random_keys(0, 0, index), VOCAB)


def config(folder, task="own_words", **settings):
    return recipe(folder, "lm", **{"task": task, "model__kind": "decoder_only", **settings})


def losses(run, kind="train"):
    return [record["loss"] for record in run.records() if record["kind"] == kind]


def trained(folder, name, **settings):
    train(config(folder, **settings), folder / name, display=Quiet())
    return Run(folder / name)


@pytest.fixture(name="own", scope="module")
def _own(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("own_words"), "own")


def test_the_model_reads_its_own_words():
    """Each input but BOS is the likeliest word after those before it in the text."""
    model = moved_model("decoder_only").eval()
    batch = own_words.with_options({"share": 1}).batch(rows(2, 5))
    read = own_words.rewriting((1, 2, 3, 4))(model, batch)
    for row, text in zip(read.inputs.tolist(), batch.inputs, strict=True):
        said = [int(model.log_probs(model.decode(text[None, :end]))[0, -1].argmax()) for end in range(1, 5)]
        assert row == [BOS, *said]
    assert (read.counts, torch.equal(read.targets, batch.targets)) == (batch.counts, True)
    as_it_is = own_words.with_options({"share": 0}).batch(rows(2, 5))
    assert torch.equal(own_words.rewriting((0,))(model, as_it_is).inputs, batch.inputs)


def test_it_sees_the_model_as_validation_does_and_leaves_it_as_it_was(tmp_path, monkeypatch):
    """Without dropout and without gradient. Its keys never repeat within a run; in validation they always do."""
    seen = []

    def noted(model, batch, key):
        seen.append((key, model.training, torch.is_grad_enabled()))
        return own_words.before(model, batch, key)

    def stepped(trainer):
        step(trainer)
        assert trainer.model.training

    step = Trainer.step
    monkeypatch.setattr(Trainer, "step", stepped)
    tasks.register(replace(own_words, name="noted", before=noted))
    settings = {"training__accumulate": "2", "training__steps": "2", "training__batch_tokens": "64"}
    trained(tmp_path, "run", task="noted", training__seed="7", training__validate_every="1", **settings)
    training = [key for key, *_ in seen if key[0] == 7]
    assert training == [(7, step, 0, number) for step in (0, 1) for number in (0, 1)]
    validation = [key for key, *_ in seen if key[0] != 7]
    assert validation[: len(validation) // 2] == validation[len(validation) // 2 :]
    assert validation[:2] == [(0, 0, 0, 0), (0, 0, 0, 1)]
    assert {(in_training, grad) for _, in_training, grad in seen} == {(False, False)}


def test_it_trains_and_other_words_are_read(own, tmp_path):
    assert losses(own)[-1] < 0.9 * losses(own)[0]
    text, plain = (
        trained(tmp_path, task, task=task, training__steps="5") for task in ("own_words:share=0", "language_model")
    )
    assert losses(text) == losses(plain) != losses(own)[:1]


def test_micro_batches_are_one_batch(tmp_path):
    found = [
        trained(tmp_path, name, training__accumulate=name, model__dropout="0.0", training__steps="10")
        for name in ("1", "2")
    ]
    for kind in ("train", "valid"):
        assert losses(found[0], kind) == pytest.approx(losses(found[1], kind), rel=1e-4)


def test_an_interrupted_one_ends_as_one_left_alone(tmp_path, monkeypatch):
    settings = {"training__accumulate": "2", "model__dropout": "0.1"}
    assert_it_ends_as_left_alone(config(tmp_path, **settings), tmp_path, monkeypatch)


def test_the_loss_of_validation_is_that_of_score(sixfold, own):
    code, out, err = sixfold("score", own.directory, "--part", "valid", "--json", "--device", "cpu")
    assert code == 0, err
    (best,) = [line for line in own.records() if line["kind"] == "valid" and line["best"]][-1:]
    assert json.loads(out)["loss"] == pytest.approx(best["loss"], rel=1e-6)


def test_a_weight_can_be_an_option_of_the_task(tmp_path):
    """A loss of weight 0 teaches nothing."""

    def weighted(model, batch, smoothing=0.0, recompute=False, *, options):
        words = own_words.losses(model, batch, smoothing, recompute)["words"]
        return {"words": words._replace(sum=options.share * words.sum)}

    tasks.register(replace(own_words, name="weighted", losses=weighted))
    run = trained(tmp_path, "run", task="weighted:share=0", training__weight_decay="0")
    assert losses(run, "valid")[0] == losses(run, "valid")[-1]
    other = trained(tmp_path, "other", task="weighted:share=1")
    assert losses(other, "valid")[0] > losses(other, "valid")[-1]


def test_before_may_take_the_options_too():
    seen = []
    task = replace(own_words, before=lambda model, batch, key, options: seen.append((key, options.share)) or batch)
    batch = task.batch(rows(2, 5))
    assert task.with_options({"share": 0.25}).rewriting((1, 2))(None, batch) is batch
    assert seen == [((1, 2), 0.25)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"main": "texts"},
            "task 'broken': its main term is 'texts', but the batch of its collate counts words",
        ),
        ({"before": lambda model, batch, key: Batch(**batch.fields)}, "the batch of its before counts nothing"),
        ({"before": lambda model, batch, key: None}, "task 'broken': its before must return a Batch, got NoneType"),
        ({"losses": lambda model, batch, **_: {}}, "the batch counts words, but the losses are none"),
    ],
)
def test_a_task_that_does_not_fit_together_is_refused_in_words(tmp_path, change, words):
    tasks.register(replace(own_words, name="broken", **change))
    with pytest.raises(ValueError, match=words):
        trained(tmp_path, "run", task="broken")
