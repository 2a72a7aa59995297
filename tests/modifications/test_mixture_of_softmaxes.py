"""Probabilities are mixed, not logits; the loss is that of the log-probabilities, in bounded memory."""

import math

import pytest
import torch
import torch.nn.functional as F

import sixfold
from sixfold.core.loss import CHUNK
from tests.support.largest import Largest
from tests.support.small import assert_close, random_ids, seeded, small_model, small_sizes

HERE = "mixture_of_softmaxes:components=3"


def states(*shape, width=16, seed=1):
    return torch.randn(*shape, width, dtype=torch.float64, generator=seeded(seed))


@torch.no_grad()
def test_log_probs_are_those_of_the_formula_and_sum_to_one():
    model = small_model(modifications=(HERE,))
    E, P, C = model.tables[0].weight, model.head.mixture.weight, model.head.contexts.weight.view(3, 16, 16)
    x = states(2, 4)
    log_p = model.log_probs(x)
    for b in range(2):
        for t in range(4):
            pi = (P @ x[b, t]).softmax(0)
            p = sum(pi[j] * (E @ (C[j] @ x[b, t]).tanh()).softmax(0) for j in range(3))
            assert_close(log_p[b, t], p.log())
    assert_close(log_p.exp().sum(-1), torch.ones(2, 4, dtype=torch.float64), within=1e-12)


@torch.no_grad()
def test_one_component_is_a_softmax_of_a_tanh():
    model = small_model(modifications=("mixture_of_softmaxes:components=1",))
    x = states(5)
    logits = F.linear(x, model.head.contexts.weight).tanh() @ model.tables[0].weight.T
    assert_close(model.log_probs(x), logits.log_softmax(-1))


@torch.no_grad()
def test_equal_components_are_one_component():
    model, x = small_model(modifications=(HERE,)), states(5)
    C = model.head.contexts.weight.view(3, 16, 16)
    C[1:] = C[0]
    assert_close(model.log_probs(x), ((x @ C[0].T).tanh() @ model.tables[0].weight.T).log_softmax(-1))


def test_by_hand():
    """Two components that believe in (3/4, 1/4) and (1/4, 3/4), weighted 1/3 and 2/3: p = (5/12, 7/12)."""
    sizes = small_sizes(d_model=1, heads=1, vocab=2)
    model = sixfold.build(sizes, ["mixture_of_softmaxes:components=2"], model="decoder_only", seed=1)
    with torch.no_grad():
        model.tables[0].weight.copy_(
            torch.tensor([[math.log(3) / 2 / math.tanh(1)], [-math.log(3) / 2 / math.tanh(1)]])
        )
        model.head.contexts.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        model.head.mixture.weight.copy_(torch.tensor([[0.0], [math.log(2)]]))
    torch.testing.assert_close(model.log_probs(torch.ones(1, 1)).exp(), torch.tensor([[5 / 12, 7 / 12]]))


@torch.no_grad()
def test_log_probs_have_a_higher_rank_than_one_softmax_can():
    x = states(45, width=4)
    ranks = {
        m: torch.linalg.matrix_rank(small_model(modifications=m, d_model=4, heads=2).log_probs(3 * x), rtol=1e-9)
        for m in ((), (HERE,))
    }
    assert ranks[()] <= 5
    assert ranks[(HERE,)] > 20


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("components", [2, 300])  # all tokens in one piece, and in several
def test_the_loss_and_its_gradients_are_those_of_the_log_probs(smoothing, components):
    model = small_model(modifications=(f"mixture_of_softmaxes:components={components}",))
    x, targets = states(2, 4).requires_grad_(), torch.tensor([[1, 49, 5, 5], [7, 0, 3, 0]])
    leaves = [x, *model.tables.parameters(), *model.head.parameters()]
    total, tokens, _ = model.head.loss(x, model.tables[0], targets, smoothing)
    q = torch.full((8, 50), smoothing / 49, dtype=torch.float64).scatter(1, targets.view(-1, 1), 1 - smoothing)
    q = q.masked_fill(torch.arange(50) == 0, 0) * (targets.view(-1, 1) != 0)
    expected = -(q * model.log_probs(x).flatten(0, 1)).sum()
    assert tokens == 6
    assert_close(total, expected)
    assert_close(torch.autograd.grad(total, leaves), torch.autograd.grad(expected, leaves))


def test_no_tensor_of_the_loss_is_larger_than_a_chunk_of_plain_logits():
    model = small_model(modifications=("mixture_of_softmaxes:components=15",), vocab=400)
    x, targets = states(900), torch.arange(900) % 400
    with Largest() as largest:
        total, _, _ = model.head.loss(x.requires_grad_(), model.tables[0], targets)
        total.backward()
    assert largest.numel == max(CHUNK // 15 * 400, 900 * 16)


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder_only", "encoder_only"])
def test_models_learn_through_it(kind):
    model = small_model(kind, (HERE,)).train()
    ids, targets = random_ids(2, 6, seeded(2)), random_ids(2, 6, seeded(3))
    model(sixfold.Batch(source=None if kind == "decoder_only" else ids, inputs=ids, targets=targets)).sum.backward()
    assert all(p.grad.abs().max() > 0 for p in model.parameters())


def test_matrices_of_the_head_decay_and_the_table_does_not():
    model = small_model(modifications=(HERE,))
    decays = {id(p): group.decay for group in model.groups() for p in group.parameters}
    assert all(decays[id(p)] for p in model.head.parameters())
    assert not any(decays[id(p)] for p in model.tables.parameters())


def test_components_must_be_some():
    with pytest.raises(ValueError, match="components must be at least 1, got 0"):
        sixfold.build(small_sizes(), ["mixture_of_softmaxes:components=0"])
