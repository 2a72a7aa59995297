"""Which weights are best, and what becomes of a run whose validation finds no number."""

import json
import math

import pytest
import torch

from sixfold.api.describe import describe_run, table_of
from sixfold.decoding.translator import Translator
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.tasks.task import task_of
from sixfold.terminal import console
from sixfold.text.corpus import open_prepared
from sixfold.text.tokenizer import Tokenizers
from sixfold.training import checkpoint
from sixfold.training.observers.display import NO_BEST, Quiet
from sixfold.training.processes import Processes
from sixfold.training.runner import resume, train
from sixfold.training.signals import Signals
from sixfold.training.validation import Validation, check_validation
from tests.support import tiny
from tests.support.breaking_off import Listener


def better(folder, metric, scores, best, best_loss):
    config = tiny.config(folder, training__metric=metric)
    return Validation(config, task_of(config), None, None).is_better(scores, best, best_loss)


def test_of_equals_the_lower_loss_is_better(tmp_path):
    assert better(tmp_path, "bleu", {"bleu": 0.0, "loss": 2.0}, 0.0, 3.0)
    assert not better(tmp_path, "bleu", {"bleu": 0.0, "loss": 3.0}, 0.0, 3.0)
    assert not better(tmp_path, "bleu", {"bleu": 0.0, "loss": 1.0}, 0.1, 3.0)
    assert better(tmp_path, "bleu", {"bleu": 0.2, "loss": 9.0}, 0.1, 3.0)
    assert better(tmp_path, "ter", {"ter": 5.0, "loss": 9.0}, 6.0, 3.0)
    assert better(tmp_path, "bleu", {"bleu": 0.0, "loss": 2.0}, None, None)


@pytest.mark.parametrize("scores", [{"bleu": 1.0, "loss": math.nan}, {"bleu": math.nan, "loss": 1.0}])
def test_what_is_no_number_is_never_best(tmp_path, scores):
    assert not better(tmp_path, "bleu", scores, None, None)


def test_the_best_loss_is_in_the_checkpoint(tmp_path):
    run = Run(tiny.corpus(tmp_path) / "run")
    config = tiny.config(tmp_path, training__steps=1, training__validate_every=1, training__metric="perplexity")
    train(config, run.directory, display=Quiet())
    valid = next(record for record in run.records() if record["kind"] == "valid")
    progress = json.loads((run.training / "step-1" / "state.json").read_text())["progress"]
    assert progress["best_loss"] == valid["loss"]


def test_a_validation_without_a_number_leaves_the_rest_to_the_guard(tmp_path):
    run = Run(tiny.corpus(tmp_path) / "run")
    config = tiny.config(
        tmp_path,
        training__steps=6,
        training__log_every=1,
        training__validate_every=2,
        training__warmup=0,
        training__schedule="constant",
        training__learning_rate="1.0e+12",
    )
    outcome = train(config, run.directory, display=Quiet())
    records = list(run.records())
    assert math.isnan(float(next(r for r in records if r["kind"] == "valid")["loss"]))
    assert any(r["kind"] == "rolled back" for r in records)
    assert all(float(r["loss"]) != 0 for r in records if r["kind"] == "train")  # no mean of nothing
    assert resume(run.directory, display=Quiet()).reason == outcome.reason


@pytest.mark.parametrize("settings", [{"training__patience": 2, "training__metric": "auto"}, {}])
def test_what_nothing_can_be_validated_for_is_refused(tmp_path, settings):
    key = "patience" if settings else "metric"
    with pytest.raises(ValueError, match=rf"training\.{key} is .*give --data\.valid"):
        train(
            tiny.config(tmp_path, data__valid="null", data__held_out=0, **settings), tmp_path / "run", display=Quiet()
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("metric", ["auto", "loss"])
def test_without_text_to_validate_on_the_metric_may_be_left_open(tmp_path, metric):
    config = tiny.short(tiny.corpus(tmp_path), data__valid="null", data__held_out=0, training__metric=metric)
    check_validation(config, task_of(config))
    assert train(config, tmp_path / "run", display=Quiet()).finished
    assert {record["kind"] for record in Run(tmp_path / "run").records()}.isdisjoint({"valid"})


def test_until_a_validation_gives_a_number_the_model_is_the_latest(run, monkeypatch):
    new, listener = Run(run.directory.with_name("new")), Listener()
    monkeypatch.setattr(Validation, "_losses", lambda *_: {"words": (float("nan"), 1.0)})
    train(tiny.short(run.directory.parent), new.directory, display=listener)
    assert any(f"{NO_BEST}, of step 4" in words for words in listener.words)
    weights = checkpoint.read(new.training / "step-4").tensors("model")
    assert all(
        torch.equal(tensor, weights[name]) for name, tensor in model_files.load(new.directory).state_dict().items()
    )
    described = describe_run(new)
    assert described["weights"] == {"step": 4, "why": NO_BEST}
    with (shown := console()).capture() as captured:
        shown.print(table_of(described))
    assert "of step 4: no validation has given a finite score" in " ".join(captured.get().split())
    monkeypatch.undo()
    resume(new.directory, {"training.steps": "6"}, display=Quiet())
    assert describe_run(new)["weights"] == {"step": 6, "why": "the best so far"}


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_every_validation_decodes_with_the_weights_of_now(run, precision):
    """The candidate is one model, whose weights are copied in place before each validation."""
    config = run.read_config({"decoding.precision": precision, "decoding.max_length": "9"})
    task, prepared = task_of(config), open_prepared(run.data, Tokenizers.load(run.directory))
    validation = Validation(config, task, prepared, Processes())
    candidate, best = model_files.load(run.directory), model_files.load(run.directory).state_dict()
    other = {name: -tensor for name, tensor in best.items()}
    sources = [reference.source for reference in prepared.references]
    found = []
    for weights in (best, other, best):
        checkpoint.load_weights(candidate, weights)
        fresh = model_files.load(run.directory)
        checkpoint.load_weights(fresh, weights)
        texts = validation._answers(candidate, Signals())
        user = Translator(fresh, prepared.tokenizers, config.decoding)
        assert texts == [each.text for each in user.translate(sources)]
        found.append(texts)
    assert found[0] == found[2] != found[1]
