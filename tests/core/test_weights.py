"""How much each target counts: weights in every head's loss, and positions that never reach a head."""

import pytest
import torch

from sixfold.core.batch import Batch
from sixfold.core.loss import scored_only, smoothed_loss
from tests.support.small import VOCAB, assert_close, moved_model, random_ids, seeded

HEADS = [(), ("adaptive_softmax",), ("mixture_of_softmaxes:components=2",)]
WEIGHTS = torch.tensor([[1.0, 0.0, 0.5], [2.0, 1.0, 0.0]], dtype=torch.float64)


def batch_of(weights, seed=0):
    rows, length = weights.shape
    source, targets = (random_ids(rows, length, seeded(seed + each)) for each in range(2))
    return Batch(source=source, targets=targets, weights=weights)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert_close(left[name], right[name])


def by_hand(model, batch, smoothing):
    """Word by word: 1 − ε on the right one, ε/(V − 1) on every other but PAD."""
    log_p = model.log_probs(model.encode(batch.source))
    total = 0
    for row, column in batch.get("weights").nonzero().tolist():
        target = int(batch.targets[row, column])
        share = torch.full((VOCAB,), smoothing / (VOCAB - 1), dtype=torch.float64)
        share[target], share[0] = 1 - smoothing, 0
        total = total - batch.get("weights")[row, column] * (share * log_p[row, column]).sum()
    return total


@pytest.mark.parametrize("wishes", HEADS, ids=lambda wishes: wishes[0].partition(":")[0] if wishes else "softmax")
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_every_head_counts_a_target_as_often_as_its_weight_says(wishes, smoothing):
    model, batch = moved_model("encoder_only", wishes), batch_of(WEIGHTS)
    found = model(batch, smoothing=smoothing)
    assert_close(found.sum, by_hand(model, batch, smoothing))
    assert_close(found.plain, by_hand(model, batch, 0.0))
    assert (found.tokens, found.plain.requires_grad) == (4, False)
    expected = gradients(model, by_hand(model, batch, smoothing))
    assert_same_gradients(gradients(model, model(batch, smoothing=smoothing).sum), expected)


def test_smoothed_loss_with_weights_by_hand():
    log_p = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]).log()
    targets, weights = torch.tensor([0, 2]), torch.tensor([3.0, 0.0])
    right, others = -torch.tensor(0.5).log(), -2 * torch.tensor(0.25).log()
    torch.testing.assert_close(smoothed_loss(log_p, targets, 0.0, weights), 3 * right)
    torch.testing.assert_close(smoothed_loss(log_p, targets, 0.2, weights), 3 * (0.8 * right + 0.1 * others))


def test_a_row_of_weight_zero_is_no_class_and_class_zero_is_one():
    model = moved_model("encoder_only", classes=3)
    source, targets = random_ids(3, 4, seeded(1)), torch.tensor([0, 2, 0])
    log_p = model.classify(source)
    found = model(Batch(source=source, targets=targets, weights=torch.tensor([True, False, True])))
    assert_close(found.sum, -log_p[0, 0] - log_p[2, 0])
    assert found.tokens == 2
    assert model(Batch(source=source, targets=targets)).tokens == 3


def states(weights):
    x = torch.randn(*weights.shape, 4, dtype=torch.float64, generator=seeded(3)).requires_grad_()
    return x, torch.arange(weights.numel()).reshape(weights.shape), weights


@pytest.mark.parametrize(("scored", "kept"), [(0, 8), (1, 1), (4, 4), (7, 7), (8, 8)])
def test_positions_that_are_not_scored_are_left_out(scored, kept):
    """But not where none is: a head reads something, or processes would not agree on who has a gradient."""
    weights = (torch.randperm(8, generator=seeded()) < scored).reshape(2, 4)
    x, targets, given = states(weights)
    states_left, targets_left, weights_left = scored_only(x, targets, given)
    assert targets_left.numel() == weights_left.numel() == kept
    assert states_left.numel() == 4 * kept
    assert torch.equal(targets_left[weights_left], targets[weights])
    assert torch.equal(states_left[weights_left], x[weights])


def test_without_weights_nothing_is_left_out():
    x, targets, _ = states(torch.ones(2, 4))
    assert scored_only(x, targets, None) == (x, targets, None)


def test_the_gradient_of_what_is_left_out_is_zero_and_that_of_the_rest_is_its_own():
    weights = torch.tensor([[True, False, False], [False, False, True]])
    x, targets, _ = states(weights)
    left, _, _ = scored_only(x, targets, weights)
    factors = torch.tensor([[2.0], [3.0]], dtype=torch.float64)
    (left * factors).sum().backward()
    expected = torch.zeros_like(x)
    expected[0, 0], expected[1, 2] = 2, 3
    assert torch.equal(x.grad, expected)


def test_leaving_out_changes_no_gradient_of_a_model(monkeypatch):
    model, batch = moved_model("encoder_only"), batch_of(torch.eye(6)[:2] > 0)
    without = gradients(model, model(batch, smoothing=0.1).sum)
    monkeypatch.setattr("sixfold.models.model.scored_only", lambda *all_of_them: all_of_them)
    assert_same_gradients(without, gradients(model, model(batch, smoothing=0.1).sum))
