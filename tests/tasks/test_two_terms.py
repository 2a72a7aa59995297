"""A user's task with two terms of different counts trains like one of ours."""

from dataclasses import replace

import pytest
import torch

from sixfold.core.batch import Batch
from sixfold.runs.run import Run
from sixfold.tasks import task as tasks
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import train
from tests.support import labelled
from tests.support.two_terms import collate, two_terms
from tests.support.verified import results


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = labelled.tables(tmp_path_factory.mktemp("two_terms"))
    config = labelled.config(folder, task="two_terms:masked=0.5", training__steps=60)
    train(config, folder / "run", display=Quiet())
    return Run(folder / "run")


def lines(run, kind):
    return [record for record in run.records() if record["kind"] == kind]


@pytest.mark.parametrize("kind", ["train", "valid"])
@pytest.mark.parametrize("term", ["loss", "words_loss"])
def test_both_terms_fall(run, kind, term):
    found = [line[term] for line in lines(run, kind)]
    assert found[-1] < 0.9 * found[0]


def test_it_is_asked_as_a_classifier(run):
    assert lines(run, "valid")[-1]["accuracy"] > 50  # of three labels
    assert run.read_config().task == {"name": "two_terms", "chosen": 0.3, "masked": 0.5, "random": 0.1}
    assert {"accuracy", "macro_f1"} <= set(two_terms.known_metrics)


def test_the_logged_losses_are_means_over_labels_and_over_words(run):
    """The first line is of steps 1 to 3; tokens are those of the main term, labels."""
    first = lines(run, "train")[0]
    assert first["tokens"] < 60 * 3
    assert first["loss"] == pytest.approx(torch.tensor(3.0).log().item(), abs=0.4)  # three labels, nearly untrained
    assert first["words_loss"] > first["loss"]  # of a dozen characters


def test_verify_finds_nothing_wrong(run):
    found = results(run.directory)
    assert {key: each.note for key, each in found.items() if each.result == "fail"} == {}
    assert {"micro-batches", "resume", "loss", "score"} <= {key for key in found if found[key].result == "pass"}


def test_a_term_that_nothing_is_counted_for_is_zero(tmp_path, monkeypatch):
    """As where a text that is validated on has no word to hide."""

    def hides_nothing(rows, options):
        batch = collate(rows, options)
        nothing = {"chosen": torch.zeros_like(batch.get("chosen"))}
        return Batch(**{**batch.fields, **nothing}, counts={**batch.counts, "words": 0})

    monkeypatch.setattr(tasks, "_registered", tasks.all_tasks())
    tasks.register(replace(two_terms, name="hides_nothing", collate=hides_nothing))
    folder = labelled.tables(tmp_path)
    train(labelled.config(folder, task="hides_nothing", training__steps=10), folder / "run", display=Quiet())
    found = lines(Run(folder / "run"), "train") + lines(Run(folder / "run"), "valid")
    assert {line["words_loss"] for line in found} == {0.0}
    assert all(line["loss"] > 0 for line in found)
