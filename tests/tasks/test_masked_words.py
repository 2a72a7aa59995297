"""Masked words: what is asked, what reaches the head, and what may be set."""

import numpy as np
import pytest
import torch

from sixfold.core.ids import MASK
from sixfold.tasks.task import find_task
from sixfold.text.arrays import Examples, Ragged, RowRange
from sixfold.text.rows import Rows, random_keys
from tests.support.small import VOCAB, moved_model


def rows(number, length):
    ids = np.random.default_rng(0).integers(5, VOCAB, number * length).astype(np.uint16)
    offsets = np.arange(number + 1) * length
    index = np.arange(number)
    return Rows(Examples(None, Ragged(ids, offsets), (RowRange(number, 1.0),)), index, random_keys(0, 0, index), VOCAB)


def seen_by_the_head(model, monkeypatch):
    """How many rows of states the table is asked to score, pass by pass."""
    table, seen = model.roles["output"], []
    logits = table.logits
    monkeypatch.setattr(table, "logits", lambda x: seen.append(x.shape[0]) or logits(x))
    return seen


@pytest.mark.parametrize("training", [True, False])
def test_the_head_sees_the_chosen_positions_only(monkeypatch, training):
    task, model = find_task("masked_words"), moved_model("encoder_only")
    batch = task.batch(rows(8, 40))
    seen = seen_by_the_head(model, monkeypatch)
    with torch.set_grad_enabled(training):
        terms = model(batch, task.losses)
    assert sum(seen) == batch.counts["words"] == int(batch.get("weights").sum())
    assert 0.08 < sum(seen) / batch.source.numel() < 0.25  # about 15 %
    assert set(terms) == {"words"}


def test_the_loss_is_that_of_the_chosen_words():
    task, model = find_task("masked_words"), moved_model("encoder_only")
    batch = task.batch(rows(4, 20))
    log_p = model.log_probs(model.encode(batch.source)).gather(-1, batch.targets[..., None])[..., 0]
    torch.testing.assert_close(model(batch, task.losses)["words"].shown, -log_p[batch.get("weights")].sum().detach())


def test_a_batch_without_rows_counts_nothing():
    task, model = find_task("masked_words"), moved_model("encoder_only")
    some = rows(2, 5)
    batch = task.batch(Rows(some.examples, some.index[:0], some.keys[:0], VOCAB))
    words = model(batch, task.losses)["words"]
    words.sum.backward()
    assert (batch.counts, words.sum.item(), words.shown.item()) == ({"words": 0}, 0.0, 0.0)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_options_say_what_becomes_of_the_chosen_words():
    everything = find_task("masked_words").with_options({"chosen": "1", "masked": "1", "random": "0"})
    batch = everything.batch(rows(2, 6))
    assert bool((batch.source == MASK).all())
    assert batch.counts == {"words": 12}
    as_they_are = everything.with_options({"masked": 0.0})
    assert torch.equal(as_they_are.batch(rows(2, 6)).source, batch.targets)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chosen": 0}, "chosen must be more than 0"),
        ({"chosen": 1.5}, "'chosen' of task 'masked_words' is a share from 0 to 1, got 1.5"),
        ({"masked": 0.95}, "masked + random at most 1, got 0.15, 0.95 and 0.1"),
        ({"masked": "nan"}, "masked"),
        ({"masked": "much"}, "option 'masked' of task 'masked_words'"),
    ],
)
def test_options_that_can_not_be_are_refused(options, words):
    with pytest.raises(ValueError) as error:
        find_task("masked_words").with_options(options)
    assert words in str(error.value)
