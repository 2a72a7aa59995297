"""The adaptive softmax is a probability over all words, and its loss is that of its log-probabilities."""

import math

import pytest
import torch
import torch.nn.functional as F

import sixfold
from sixfold.core import loss as module
from sixfold.narang.rows import BASELINE
from tests.support.small import assert_close, random_ids, seeded, small_model, small_sizes

HERE = "adaptive_softmax:cutoffs=5/20,factors=1/2/4"
VARIANTS = [HERE, f"{HERE},sentinels=4", f"{HERE},projection=false", "adaptive_softmax:cutoffs=9,factors=2/4"]
KINDS = ("encoder_decoder", "decoder_only", "encoder_only")
variants = pytest.mark.parametrize("modification", VARIANTS)


def states(*shape, seed=1):
    return torch.randn(*shape, 16, dtype=torch.float64, generator=seeded(seed))


def word_by_word(model, x):
    """log p(v) for one state x (D,), as the formula says it."""
    table, tails = model.roles["output"], model.head.tails.weight
    scores = [cluster.logits(x) for cluster in table.clusters]
    head = torch.cat([scores[0], tails @ x]).exp()
    found = []
    for v in range(50):
        (c,) = [c for c in range(len(scores)) if table.edges[c] <= v < table.edges[c + 1]]
        if c == 0:
            found.append(head[v] / head.sum())
        else:
            tail = scores[c].exp()
            found.append(head[len(scores[0]) + c - 1] / head.sum() * tail[v - table.edges[c]] / tail.sum())
    return torch.stack(found).log()


@variants
@torch.no_grad()
def test_log_probs_are_those_of_the_formula_and_sum_to_one(modification):
    model = small_model(modifications=(modification,))
    x = states(3)
    log_p = model.log_probs(x)
    assert log_p.shape == (3, 50)
    assert_close(log_p, torch.stack([word_by_word(model, row) for row in x]))
    assert_close(log_p.exp().sum(-1), torch.ones(3, dtype=torch.float64), within=1e-12)


@torch.no_grad()
def test_where_a_tails_entry_is_the_sum_of_its_words_it_is_the_ordinary_softmax():
    model = small_model(modifications=(HERE,))
    (table,), x = model.tables, states(1)
    logits = table.logits(x)
    for tail, (start, end) in enumerate(((5, 20), (20, 50))):
        model.head.tails.weight[tail] = x[0] / x[0].square().sum() * logits[0, start:end].logsumexp(0)
    assert_close(model.log_probs(x), logits.log_softmax(-1))


def test_by_hand():
    """One frequent word and one tail of two: p = (1/2, 1/2 · 1/4, 1/2 · 3/4)."""
    sizes = small_sizes(d_model=2, heads=1, vocab=3)
    model = sixfold.build(sizes, ["adaptive_softmax:cutoffs=1,factors=1/1"], model="decoder_only", seed=1)
    with torch.no_grad():
        model.tables[0].clusters[0].weight.copy_(torch.tensor([[0.0, 0.0]]))
        model.head.tails.weight.zero_()
        model.tables[0].clusters[1].weight.copy_(torch.tensor([[0.0, 5.0], [math.log(3), 5.0]]))
    x = torch.tensor([[1.0, 2.0]])
    torch.testing.assert_close(model.log_probs(x).exp(), torch.tensor([[1 / 2, 1 / 8, 3 / 8]]))
    total, tokens, _ = model.head.loss(x.expand(3, -1), model.tables[0], torch.tensor([2, 0, 1]))
    assert tokens == 2
    assert total.item() == pytest.approx(-math.log(1 / 8) - math.log(3 / 8))


@pytest.mark.parametrize("chunk", [3, 512])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@variants
def test_the_loss_and_its_gradients_are_those_of_the_log_probs(modification, smoothing, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    model = small_model(modifications=(modification,))
    x, targets = states(2, 7).requires_grad_(), torch.tensor([[0, 1, 4, 5, 19, 20, 49], [46, 45, 3, 0, 0, 0, 0]])
    leaves = [x, *model.tables.parameters(), *model.head.parameters()]
    total, tokens, _ = model.head.loss(x, model.roles["output"], targets, smoothing)
    q = torch.full((14, 50), smoothing / 49, dtype=torch.float64).scatter(1, targets.view(-1, 1), 1 - smoothing)
    q = q.masked_fill(torch.arange(50) == 0, 0) * (targets.view(-1, 1) != 0)
    expected = -(q * model.log_probs(x).flatten(0, 1)).sum()
    assert tokens == 9
    assert_close(total, expected)
    assert_close(torch.autograd.grad(total * 3, leaves), torch.autograd.grad(expected * 3, leaves))
    with torch.no_grad():
        assert_close(model.head.loss(x, model.roles["output"], targets, smoothing)[0], expected.detach())


def test_a_tail_learns_only_from_its_words():
    model = small_model(modifications=(HERE,))
    frequent, middle, rare = model.tables[0].clusters
    model.head.loss(states(3), model.tables[0], torch.tensor([2, 7, 2]))[0].backward()
    assert frequent.weight.grad.abs().min() > 0
    assert middle.weight.grad.abs().min() > 0
    assert middle.projection.weight.grad.abs().max() > 0
    assert (rare.weight.grad == 0).all()
    assert (rare.projection.weight.grad == 0).all()
    assert model.head.tails.weight.grad.abs().min() > 0


def test_in_training_a_tail_is_computed_only_where_a_target_lies_in_it(monkeypatch):
    model = small_model(modifications=(HERE,))
    rows = []
    for cluster in model.tables[0].clusters:
        monkeypatch.setattr(cluster, "logits", lambda x, plain=cluster.logits: rows.append(len(x)) or plain(x))
    model.head.loss(states(6), model.tables[0], torch.tensor([0, 7, 2, 30, 40, 3]))
    assert sorted(rows) == [1, 2, 6]
    rows.clear()
    model.head.loss(states(6), model.tables[0], torch.tensor([0, 7, 2, 30, 40, 3]), 0.1)
    assert rows == [6, 6, 6]


@pytest.mark.parametrize("kind", KINDS)
def test_models_learn_through_it(kind):
    model = small_model(kind, (HERE,)).train()
    ids, targets = random_ids(2, 6, seeded(2)), torch.tensor([[1, 4, 5, 19, 20, 49], [46, 45, 3, 7, 8, 0]])
    batch = sixfold.Batch(source=None if kind == "decoder_only" else ids, inputs=ids, targets=targets)
    losses = model(batch)
    losses.sum.backward()
    assert losses.tokens == 11
    assert all(p.grad.abs().max() > 0 for p in model.parameters())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_has_its_shape_without_memory(smoothing):
    model = sixfold.build(small_sizes(), [HERE], device="meta")
    ids = torch.zeros(2, 6, dtype=torch.long, device="meta")
    total = model(sixfold.Batch(ids, ids, ids), smoothing=smoothing).sum
    total.backward()
    assert total.is_meta
    assert total.shape == ()


def test_the_first_loss_is_that_of_equal_entries_and_equal_words():
    """On natural text most words are frequent: then it is about ln V; on words drawn evenly it is more."""
    sizes = small_sizes(d_model=128, heads=4, vocab=3000)
    model = sixfold.build(sizes, ["adaptive_softmax"], model="decoder_only", seed=1)
    x = F.layer_norm(torch.randn(400, 128, generator=seeded(3)), (128,))
    for start, end in ((3, 233), (233, 794), (794, 3000)):
        targets = torch.randint(start, end, (400,), generator=seeded(4))
        total, _, _ = model.head.loss(x, model.tables[0], targets)
        softmaxes = [math.log(235)] + ([math.log(end - start)] if start > 3 else [])
        assert total.item() / 400 == pytest.approx(sum(softmaxes) + 0.5 * len(softmaxes), abs=0.25)


def test_at_the_studys_size_it_has_its_parameters():
    """2503·768 + 6000·256 + 256·768 + 23,500·64 + 64·768 + 128·768, and (V + 3)·768"""
    for options, parameters in (("", 5_306_368), (",projection=false", 24_676_608)):
        model = sixfold.build(BASELINE, [f"adaptive_softmax:sentinels=128{options}"], device="meta")
        assert sum(p.numel() for part in (model.tables, model.head) for p in part.parameters()) == parameters


def test_sentinels_are_the_last_ids_in_full_width():
    model = small_model(modifications=(f"{HERE},sentinels=4",))
    assert model.tables[0].edges == [0, 5, 20, 46, 50]
    assert model.tables[0].clusters[3].weight.shape == (4, 16)
    assert model.tables[0].clusters[3].projection is None
    for wrong in ("sentinels=-1", "sentinels=40", "sentinels=50"):
        with pytest.raises(ValueError, match=r"sentinels must|divide 50 words"):
            sixfold.build(small_sizes(), [f"adaptive_softmax:{wrong}"])


def test_another_softmax_is_refused():
    with pytest.raises(ValueError, match="both fill the slot 'head'"):
        sixfold.build(small_sizes(), ["adaptive_softmax", "mixture_of_softmaxes"])
    with pytest.raises(ValueError, match="both fill the slot 'embedding'"):
        sixfold.build(small_sizes(), ["adaptive_softmax", "adaptive_input"])
