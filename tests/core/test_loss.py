"""The loss in chunks equals the plain one, and never holds the logits of a whole batch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import sixfold
from sixfold.core import loss as module
from sixfold.core.loss import chunked_cross_entropy, chunked_likelihood, chunked_loss, smoothed_loss
from tests.support.largest import Largest

N, D, V = 11, 6, 9
TARGETS = torch.tensor([3, 0, 8, 1, 0, 0, 5, 5, 2, 7, 0])


def numbers(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Table:
    """Logits by a matrix; remembers the most rows it was asked for."""

    def __init__(self, weight: Tensor):
        self.weight, self.rows = weight, 0

    def logits(self, x: Tensor) -> Tensor:
        self.rows = max(self.rows, x.shape[0])
        return F.linear(x, self.weight)

    def loss(self, x: Tensor, targets: Tensor, smoothing: float = 0.0) -> module.Scored:
        return chunked_cross_entropy(self.logits, x, targets, [self.weight], smoothing)


def plain(x: Tensor, weight: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Σ −q·log p, with q written out: (1 − ε) on the target, ε/(V − 1) on the others, nothing on PAD."""
    q = torch.full((len(targets), weight.shape[0]), smoothing / (weight.shape[0] - 1), dtype=x.dtype)
    q[torch.arange(len(targets)), targets] = 1 - smoothing
    q[:, 0] = 0
    q[targets == 0] = 0
    return -(q * F.linear(x, weight).log_softmax(-1)).sum()


@pytest.fixture(params=[3, 4, 512], ids="chunk_{}".format)
def chunk(request, monkeypatch) -> int:
    monkeypatch.setattr(module, "CHUNK", request.param)
    return request.param


def leaves(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return numbers(N, D, dtype=dtype).requires_grad_(), numbers(V, D, seed=2, dtype=dtype).requires_grad_()


def test_loss_and_gradients_equal_cross_entropy(chunk):
    (x, weight), (its_x, its_weight) = leaves(), leaves()
    total, tokens, _ = Table(weight).loss(x, TARGETS)
    its = F.cross_entropy(F.linear(its_x, its_weight), TARGETS, ignore_index=0, reduction="sum")
    assert tokens == 7
    torch.testing.assert_close(total, its)
    (total * 0.5).backward()
    (its * 0.5).backward()
    torch.testing.assert_close(x.grad, its_x.grad)
    torch.testing.assert_close(weight.grad, its_weight.grad)


def test_smoothed_loss_and_gradients_equal_the_plain_formula(chunk):
    (x, weight), (its_x, its_weight) = leaves(torch.float64), leaves(torch.float64)
    total, _, _ = Table(weight).loss(x, TARGETS, 0.2)
    its = plain(its_x, its_weight, TARGETS, 0.2)
    torch.testing.assert_close(total, its)
    (total * 3).backward()
    (its * 3).backward()
    torch.testing.assert_close(x.grad, its_x.grad)
    torch.testing.assert_close(weight.grad, its_weight.grad)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_what_is_reported_has_no_smoothing_and_no_gradient(chunk, smoothing):
    x, weight = leaves()
    expected = F.cross_entropy(F.linear(x, weight), TARGETS, ignore_index=0, reduction="sum").detach()
    scored = [
        Table(weight).loss(x, TARGETS, smoothing),
        chunked_likelihood(softmax_of(weight), x, TARGETS, [weight], smoothing),
    ]
    with torch.no_grad():
        scored.append(Table(weight).loss(x, TARGETS, smoothing))
    for each in scored:
        assert not each.plain.requires_grad
        torch.testing.assert_close(each.plain, expected)


def test_padding_targets_have_no_gradient(chunk):
    x, weight = leaves()
    Table(weight).loss(x, TARGETS, 0.1)[0].backward()
    assert torch.equal(x.grad.abs().sum(1) == 0, TARGETS == 0)


def test_rows_may_be_a_batch_of_sequences(chunk):
    x, targets = numbers(2, 5, D).requires_grad_(), TARGETS[:10].view(2, 5)
    _, weight = leaves()
    total, tokens, _ = Table(weight).loss(x, targets)
    flat, _, _ = Table(weight).loss(x.flatten(0, 1), targets.flatten())
    assert tokens == 7
    torch.testing.assert_close(total, flat)
    total.backward()
    assert x.grad.shape == x.shape


def test_smoothing_by_hand_with_four_words():
    """p = (.1, .2, .3, .4), ε = .3, target 2: q = (0, .1, .7, .1), gradient = .9 p − q."""
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).log()
    value = -(0.1 * math.log(0.2) + 0.7 * math.log(0.3) + 0.1 * math.log(0.4))
    assert value == pytest.approx(1.0953539)
    x, weight = logits.clone().requires_grad_(), torch.eye(4).requires_grad_()
    total, tokens, _ = Table(weight).loss(x, torch.tensor([2]), 0.3)
    assert total.item() == pytest.approx(value)
    assert tokens == 1
    assert Table(weight).loss(x, torch.tensor([2]), 0.3).plain.item() == pytest.approx(-math.log(0.3))
    total.backward()
    torch.testing.assert_close(x.grad, torch.tensor([[0.09, 0.08, -0.43, 0.26]]))
    assert smoothed_loss(logits.log_softmax(-1), torch.tensor([2]), 0.3, never=0).item() == pytest.approx(value)


def test_smoothing_by_hand_where_no_word_is_ignored():
    """The same with q = (.1, .1, .7, .1): all classes count."""
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).log()
    total = smoothed_loss(logits.log_softmax(-1), torch.tensor([2]), 0.3)
    assert total.item() == pytest.approx(1.0953539 - 0.1 * math.log(0.1))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradcheck(chunk, smoothing):
    x, weight = leaves(torch.float64)
    assert torch.autograd.gradcheck(lambda x, w: Table(w).loss(x, TARGETS, smoothing)[0], (x, weight))


@pytest.mark.parametrize("frozen", ["x", "table"])
def test_what_is_frozen_gets_no_gradient_and_the_other_one_does(chunk, frozen):
    x, weight = leaves()
    (x if frozen == "x" else weight).requires_grad_(False)
    Table(weight).loss(x, TARGETS)[0].backward()
    assert (x.grad is None) == (frozen == "x")
    assert (weight.grad is None) == (frozen == "table")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_logits_of_all_tokens_never_exist(monkeypatch, training, smoothing):
    monkeypatch.setattr(module, "CHUNK", 3)
    tokens, words = 50, 40
    x, weight = numbers(tokens, 2).requires_grad_(training), numbers(words, 2).requires_grad_(training)
    table = Table(weight)
    with Largest() as largest:
        total, _, _ = table.loss(x, torch.arange(tokens) % words, smoothing)
        if training:
            total.backward()
    assert table.rows == 3
    assert 3 * words == largest.numel < tokens * words


def test_evaluation_gives_the_value_of_training(chunk):
    x, weight = leaves()
    for smoothing in (0.0, 0.1):
        trained, _, _ = Table(weight).loss(x, TARGETS, smoothing)
        with torch.no_grad():
            evaluated, tokens, _ = Table(weight).loss(x, TARGETS, smoothing)
        assert not evaluated.requires_grad
        assert tokens == 7
        torch.testing.assert_close(evaluated, trained.detach())


def test_large_logits_do_not_overflow():
    x, weight = torch.tensor([[1000.0]]).requires_grad_(), torch.tensor([[-1.0], [0.0], [1.0]])
    total, _, _ = Table(weight).loss(x, torch.tensor([1]))
    assert total.item() == 1000
    total.backward()
    assert x.grad.item() == 1


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("training", [True, False])
def test_half_precision_logits_are_summed_in_float32(monkeypatch, smoothing, training):
    monkeypatch.setattr(module, "CHUNK", 100)
    x, weight = numbers(600, 8, dtype=torch.bfloat16), numbers(200, 8, seed=2, dtype=torch.bfloat16)
    targets = torch.arange(600) % 199 + 1
    total, _, _ = Table(weight).loss(x.requires_grad_(training), targets, smoothing)
    logits = F.linear(x, weight).detach().float()
    assert total.dtype == torch.float32
    torch.testing.assert_close(
        total.detach(), smoothed_loss(logits.log_softmax(-1), targets, smoothing, never=0), rtol=1e-5, atol=0
    )
    exact = plain(x.detach().double(), weight.double(), targets, smoothing)
    torch.testing.assert_close(total.detach().double(), exact, rtol=1e-2, atol=0)


def test_half_precision_gradients_are_near_those_of_float32(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 100)
    x, weight = (
        t.detach().requires_grad_() for t in (numbers(600, 8, dtype=torch.bfloat16), numbers(20, 8).bfloat16())
    )
    its_x, its_weight = (t.detach().double().requires_grad_() for t in (x, weight))
    targets = torch.arange(600) % 19 + 1
    Table(weight).loss(x, targets)[0].backward()
    plain(its_x, its_weight, targets, 0.0).backward()
    for mine, its in ((x.grad, its_x.grad), (weight.grad, its_weight.grad)):
        assert mine.dtype == torch.bfloat16
        assert (mine.double() - its).norm() < 0.02 * its.norm()


def test_autocast_leaves_gradients_of_the_table_in_float32(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 4)
    (x, weight), (its_x, its_weight) = leaves(), leaves()
    with torch.autocast("cpu", torch.bfloat16):
        total, _, _ = Table(weight).loss(x, TARGETS)
    total.backward()
    plain(its_x, its_weight, TARGETS, 0.0).backward()
    assert total.dtype == weight.grad.dtype == torch.float32
    assert (weight.grad - its_weight.grad).norm() < 0.02 * its_weight.grad.norm()
    assert (x.grad - its_x.grad).norm() < 0.02 * its_x.grad.norm()


# Heads that have log-probabilities, or only a loss -----------------------------------------------------


def softmax_of(weight: Tensor):
    return lambda x: F.linear(x, weight).log_softmax(-1)


@pytest.mark.parametrize("rows", [None, 1, 5])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_likelihood_of_a_plain_softmax_is_the_cross_entropy(chunk, smoothing, rows):
    (x, weight), (its_x, its_weight) = leaves(torch.float64), leaves(torch.float64)
    total, tokens, _ = chunked_likelihood(softmax_of(weight), x, TARGETS, [weight], smoothing, rows)
    its, its_tokens, _ = Table(its_weight).loss(its_x, TARGETS, smoothing)
    assert tokens == its_tokens == 7
    torch.testing.assert_close(total, its)
    (total * 0.5).backward()
    (its * 0.5).backward()
    torch.testing.assert_close(x.grad, its_x.grad)
    torch.testing.assert_close(weight.grad, its_weight.grad)
    assert torch.equal(x.grad.abs().sum(1) == 0, TARGETS == 0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_likelihood_has_one_value_in_training_and_evaluation(chunk, smoothing):
    x, weight = leaves()
    trained, _, _ = chunked_likelihood(softmax_of(weight), x, TARGETS, [weight], smoothing)
    with torch.no_grad():
        evaluated, tokens, _ = chunked_likelihood(softmax_of(weight), x, TARGETS, [weight], smoothing)
    assert not evaluated.requires_grad
    assert tokens == 7
    torch.testing.assert_close(evaluated, trained.detach())


@pytest.mark.parametrize("frozen", ["x", "table"])
def test_the_likelihood_leaves_alone_what_is_frozen(chunk, frozen):
    x, weight = leaves()
    (x if frozen == "x" else weight).requires_grad_(False)
    chunked_likelihood(softmax_of(weight), x, TARGETS, [weight])[0].backward()
    assert (x.grad is None) == (frozen == "x")
    assert (weight.grad is None) == (frozen == "table")


def test_the_likelihood_works_on_as_many_rows_as_it_is_told(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 30)
    x, weight = numbers(50, 2).requires_grad_(), numbers(40, 2).requires_grad_()
    with Largest() as largest:
        chunked_likelihood(softmax_of(weight), x, torch.arange(50) % 40, [weight], rows=4)[0].backward()
    assert largest.numel == 4 * 40


def test_gradients_that_share_memory_are_added_up_apart(chunk):
    """Two weights that are only ever used as their sum have one gradient, which autograd gives out once."""
    (x, weight), (its_x, its_weight) = leaves(torch.float64), leaves(torch.float64)
    one, two = ((weight / 2).detach().requires_grad_() for _ in range(2))
    chunked_likelihood(lambda xs: softmax_of(one + two)(xs), x, TARGETS, [one, two])[0].backward()
    Table(its_weight).loss(its_x, TARGETS)[0].backward()
    for part in (one, two):
        torch.testing.assert_close(part.grad, its_weight.grad)


def test_a_weight_that_some_chunks_do_not_use_has_the_gradient_of_those_that_do(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 2)
    x, weight, rare, never = (t.requires_grad_() for t in (numbers(5, 3), numbers(3), numbers(3), numbers(3)))

    def loss_of(xs: Tensor, ts: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        loss = (xs @ weight).sum()
        loss = loss + (xs[ts == 2] @ rare).sum() if (ts == 2).any() else loss
        return loss, loss

    total, tokens, _ = chunked_loss(loss_of, x, torch.tensor([1, 1, 1, 2, 1]), [weight, rare, never])
    total.backward()
    assert tokens == 5
    torch.testing.assert_close(weight.grad, x.detach().sum(0))
    torch.testing.assert_close(rare.grad, x.detach()[3])
    assert (never.grad == 0).all()  # not None: processes must agree on who has a gradient


def ids(*shape: int, words: int, seed: int = 1) -> Tensor:
    return torch.randint(3, words, shape, generator=torch.Generator().manual_seed(seed))


def test_a_models_loss_is_the_cross_entropy_of_its_log_probs():
    model = sixfold.build(sixfold.Sizes(d_model=8, d_ff=8, heads=2, vocab=13, dropout=0.0), seed=1)
    source, inputs, targets = ids(2, 5, words=13), ids(2, 4, words=13, seed=2), ids(2, 4, words=13, seed=3)
    targets[1, 2:] = 0
    losses = model(sixfold.Batch(source, inputs, targets))
    log_probs = model.log_probs(model.decode(inputs, model.encode(source)))
    torch.testing.assert_close(
        losses.sum, F.nll_loss(log_probs.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="sum")
    )
    assert losses.tokens == 6
    assert losses.auxiliary == 0


def test_loss_over_classes_equals_cross_entropy():
    sizes = sixfold.Sizes(d_model=8, d_ff=8, heads=2, encoder_layers=1, vocab=13, classes=4, dropout=0.0)
    model = sixfold.build(sizes, model="encoder_only", seed=1)
    source, targets = ids(3, 5, words=13), torch.tensor([0, 3, 0])  # class 0 is a class, not padding
    source[1, 2:] = 0
    mean = torch.stack([x[s != 0].mean(0) for x, s in zip(model.encode(source), source, strict=True)])
    logits = model.classifier(mean)
    torch.testing.assert_close(model.classify(source), logits.log_softmax(-1))
    for smoothing, its in ((0.0, 0.0), (0.3, 0.4)):  # PyTorch gives ε/V to all V, the right one too: ε = 0.3 · 4/3
        losses = model(sixfold.Batch(source, targets=targets), smoothing=smoothing)
        torch.testing.assert_close(losses.sum, F.cross_entropy(logits, targets, reduction="sum", label_smoothing=its))
        assert losses.tokens == 3


@pytest.mark.parametrize("modifications", [[], ["post_norm"]], ids=["pre_norm", "post_norm"])
@pytest.mark.parametrize(("width", "layers", "words"), [(256, 3, 8000), (64, 2, 1000)])
def test_the_first_loss_is_near_ln_v(width, layers, words, modifications):
    sizes = sixfold.Sizes(
        d_model=width, d_ff=4 * width, heads=4, encoder_layers=layers, decoder_layers=layers, vocab=words
    )
    model = sixfold.build(sizes, modifications, seed=1)
    text = [ids(4, 12, words=words, seed=seed) for seed in range(3)]
    with torch.no_grad():
        losses = model(sixfold.Batch(*text))
    assert losses.sum.item() / losses.tokens.item() == pytest.approx(math.log(words), rel=0.15)


def test_matrices_start_with_unit_gain_and_biases_at_zero():
    layer = sixfold.build(sixfold.Sizes(d_model=128, d_ff=512, heads=4, vocab=9), seed=1).decoder.layers[0]
    for matrix in (layer.attention.qkv, layer.attention.output, layer.cross.q, layer.cross.kv, layer.cross.output):
        assert matrix.weight.std().item() == pytest.approx(128**-0.5, rel=0.03)
    for linear, width in ((layer.feed_forward.inner, 128), (layer.feed_forward.outer, 512)):
        assert 1.9 < linear.weight.abs().max().item() * width**0.5 <= 2
        assert linear.bias.eq(0).all()
