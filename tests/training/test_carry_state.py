"""Truncated back-propagation through time: windows of a text in order, each from the state after the one before it."""

import numpy as np
import pytest
import torch

from sixfold import BOS, Cache
from sixfold.core.carried_state import CarriedState, CarryingLosses
from sixfold.runs.run import Run
from sixfold.tasks.task import find_task
from sixfold.text.arrays import Examples, Ragged, RowRange
from sixfold.text.streams import Streams
from sixfold.training import checkpoint
from sixfold.training.guard import Guard, Verdict
from sixfold.training.observers.display import Quiet
from sixfold.training.preflight import check, check_streams
from sixfold.training.runner import train
from tests.support.interrupting import assert_it_ends_as_left_alone
from tests.support.plain_text import recipe
from tests.support.small import assert_close, moved_model, random_ids, seeded

CARRYING = find_task("language_model").with_options({"carry_state": True})
WISHES = ["lstm", "gru", "rnn", "moe_lstm:experts=4,k=2", "lightweight_convolution+no_positions"]


def examples(ids, window, weight=1.0):
    """The rows of a text that is cut into windows."""
    offsets = np.unique([*range(0, len(ids), window), len(ids)])
    return Examples(None, Ragged(np.asarray(ids), offsets), groups=(RowRange(len(offsets) - 1, weight),))


def loss_of(model, ids, window):
    """−log p of the whole text, read in windows."""
    score, total = CARRYING.scoring(), 0
    for number, batch in enumerate(CARRYING.in_order(examples(ids, window), 10**6, 50)):
        total = total + score(model, batch, number)[0]["words"].sum
    return total


def at_once(model, ids):
    """The same, in one pass without a cache."""
    log_p = model.log_probs(model.decode(torch.tensor([[BOS, *ids[:-1]]])))[0]
    return -log_p.gather(1, torch.tensor(ids)[:, None]).sum()


# Windows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wish", WISHES)
@torch.no_grad()
def test_a_text_has_the_same_loss_in_windows_of_5_of_50_and_in_one(wish):
    model, ids = moved_model("decoder_only", wish.split("+")), random_ids(1, 123, seeded(1))[0].tolist()
    for window in (5, 50, 123):
        assert_close(loss_of(model, ids, window), at_once(model, ids), within=1e-9)


def gradients_of(model):
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]  # no noise, no gradient of it


def gradients(model, ids, window):
    model.zero_grad()
    loss_of(model, ids, window).backward()
    return gradients_of(model)


@pytest.mark.parametrize("wish", ["lstm", "moe_lstm:experts=4,k=2"])
def test_a_window_of_the_whole_text_is_full_back_propagation_and_a_shorter_one_is_not(wish):
    model, ids = moved_model("decoder_only", (wish,)), random_ids(1, 20, seeded(2))[0].tolist()
    model.zero_grad()
    at_once(model, ids).backward()
    full = gradients_of(model)
    for window in (20, 30):
        assert_close(gradients(model, ids, window), full, within=1e-9)
    short = gradients(model, ids, 5)
    assert max(float((one - other).abs().max()) for one, other in zip(short, full, strict=True)) > 1e-6


def test_no_gradient_reaches_an_earlier_window():
    """The words of the first window have none from the loss of the second one, whose value depends on them."""
    model = moved_model("decoder_only", ("lstm",))
    losses, batches = CarryingLosses(CARRYING.terms), list(CARRYING.in_order(examples(list(range(5, 13)), 4), 99, 50))
    _, second = (losses(model, batch)["words"].sum for batch in batches)
    table = model.roles["target"].weight
    (gradient,) = torch.autograd.grad(second, table, retain_graph=True)
    read = losses.state
    losses.forget()
    assert losses(model, batches[1])["words"].sum.item() != pytest.approx(second.item(), abs=1e-6)
    alone = CarryingLosses(CARRYING.terms)
    alone.state = CarriedState(torch.tensor([True]))
    with torch.no_grad():
        CARRYING.terms(model, batches[0], cache=alone.state)
    (expected,) = torch.autograd.grad(alone(model, batches[1])["words"].sum, table)
    assert_close(gradient, expected, within=0)
    assert all(not state.requires_grad for states in read._carried.values() for state in states)


def test_a_row_that_begins_with_bos_begins_from_nothing_and_the_others_go_on():
    model, ids = moved_model("decoder_only", ("lstm",)), random_ids(2, 6, seeded(3))
    losses, cache = CarryingLosses(lambda model, batch, cache: model.decode(batch.inputs, cache=cache)), Cache(rows=1)

    class Inputs:
        def __init__(self, inputs):
            self.inputs = inputs

    begin = torch.full((2, 1), BOS)
    losses(model, Inputs(torch.cat([begin, ids[:, :2]], 1)))
    both = losses(model, Inputs(torch.cat([torch.tensor([[BOS], [9]]), ids[:, 3:5]], 1)))
    assert_close(both[0], model.decode(torch.cat([begin[:1], ids[:1, 3:5]], 1))[0])
    model.decode(torch.cat([begin[1:], ids[1:, :2]], 1), cache=cache)
    assert_close(both[1], model.decode(torch.cat([torch.tensor([[9]]), ids[1:, 3:5]], 1), cache=cache)[0])


# Streams -------------------------------------------------------------------------------------------------------


def test_each_step_takes_the_next_window_of_every_stream():
    """Seven windows of two words, three streams of two windows; in the next epoch they begin one window later."""
    batches = Streams(examples(range(10, 24), 2), CARRYING.batch, batch_tokens=7, seed=1)
    steps = [batches.next()[0] for _ in range(4)]
    assert steps[0].inputs.tolist() == [[BOS, 10], [BOS, 14], [BOS, 18]]
    assert steps[1].inputs.tolist() == [[11, 12], [15, 16], [19, 20]]
    assert steps[1].targets.tolist() == [[12, 13], [16, 17], [20, 21]]
    assert steps[2].inputs.tolist() == [[BOS, 12], [BOS, 16], [BOS, 20]]
    assert steps[3].targets.tolist() == [[14, 15], [18, 19], [22, 23]]
    assert (batches.epoch, batches.rows, batches.steps) == (1, 3, 2)
    again = Streams(examples(range(10, 24), 2), CARRYING.batch, batch_tokens=7, seed=1)
    again.load_state({"epoch": 0, "index": 1})
    assert again.next()[0].inputs.tolist() == steps[1].inputs.tolist()
    with pytest.raises(ValueError, match="there is no step 3 in an epoch of 2"):
        again.load_state({"epoch": 0, "index": 3})


def test_a_short_text_is_one_step_and_weights_are_refused():
    batches = Streams(examples(range(10, 15), 2), CARRYING.batch, batch_tokens=999, seed=1)
    (batch,) = batches.next()
    assert batch.targets.tolist() == [[10, 11], [12, 13], [14, 0]]
    assert batches.padding == pytest.approx(1 / 6)
    with pytest.raises(ValueError, match="leave out the weights"):
        Streams(examples(range(10, 15), 2, weight=2.0), CARRYING.batch, batch_tokens=9, seed=1)


# Runs ----------------------------------------------------------------------------------------------------------


def config(folder, modification="lstm", **settings):
    plain = {"model__modifications": f"[{modification!r}]", "task": "language_model:carry_state=true"}
    return recipe(folder, "lm", **{**plain, **settings})


@pytest.mark.parametrize("wish", ["lstm", "moe_lstm:experts=2,k=1"])
def test_an_interrupted_run_ends_as_one_left_alone(tmp_path, monkeypatch, wish):
    layers = {"model__layers": "2"}
    assert_it_ends_as_left_alone(config(tmp_path, wish, **layers), tmp_path, monkeypatch)


def test_after_a_step_that_is_skipped_the_streams_go_on_from_nothing(tmp_path, monkeypatch):
    """Its state may not be finite, and would make all later ones so."""
    forgotten, judge, forget = [], Guard.judge, CarryingLosses.forget
    monkeypatch.setattr(CarryingLosses, "forget", lambda losses: (forgotten.append(losses.state), forget(losses)))
    verdicts = iter([Verdict.GO, Verdict.GO, Verdict.SKIP])
    monkeypatch.setattr(Guard, "judge", lambda guard, *numbers: next(verdicts, None) or judge(guard, *numbers))
    train(config(tmp_path, training__steps="6"), tmp_path / "run", display=Quiet())
    assert len(forgotten) == 1
    assert forgotten[0] is not None


def test_the_state_is_in_the_checkpoint(tmp_path):
    run = Run(tmp_path / "run")
    train(config(tmp_path), run.directory, display=Quiet())
    tensors = checkpoint.read(run.training / "step-30").tensors("carried")
    state = CarriedState.of_tensors(tensors)
    assert [len(each) for each in state._carried.values()] == [2]  # h and c of one layer
    assert state.tensors().keys() == tensors.keys()
    assert state.fresh.tolist() == [False] * 12  # streams of 16 tokens in 200


def test_carrying_learns_from_what_was_before_the_window(tmp_path):
    """In windows of four characters, the loss is lower than if each began from nothing."""
    found = []
    for number, task in enumerate(("language_model:carry_state=true", "language_model")):
        run = Run(tmp_path / str(number))
        settings = {"data__context": "4", "training__steps": "120", "training__validate_every": "120", "task": task}
        train(config(tmp_path, **settings), run.directory, display=Quiet())
        found.append(next(line["loss"] for line in run.records() if line["kind"] == "valid"))
    assert found[0] < found[1] - 0.05


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"training__accumulate": "2"}, "carry_state: a window can't be divided; leave out training.accumulate 2"),
        ({"training__recompute": "true"}, "carry_state does not go together with training.recompute"),
        ({"training__compile": "true"}, "carry_state does not go together with training.compile"),
    ],
)
def test_what_does_not_go_together_is_said_before_the_text_is_read(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        check(config(tmp_path, **settings))


def test_several_processes_and_two_passes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="its streams are read by one process, and there are 2"):
        check_streams(config(tmp_path).training, 2)
    with pytest.raises(ValueError, match="r_drop passes over each window twice"):
        find_task("language_model").with_options({"carry_state": True, "r_drop": 1.0})


@pytest.mark.parametrize("wish", ["rotary", "synthesizer_dense"])
def test_attention_can_not_carry(tmp_path, wish):
    with pytest.raises(ValueError, match="carry_state needs a model whose state has a fixed size, such as lstm"):
        train(config(tmp_path, wish), tmp_path / "run", display=Quiet())
