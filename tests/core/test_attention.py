"""Attention by itself: worked by hand, by a naive loop, and by two routes."""

import itertools
import math

import pytest
import torch

from sixfold.core.attention_kernels import attend, fold, unfold
from sixfold.core.inputs import begin
from sixfold.core.masks import Sight
from sixfold.transformer import attend_explicitly
from tests.support.small import POSITIONS, assert_close, random_ids, seeded, small_model

B, H, L, K = 2, 2, 4, 3
PAST = torch.ones(L, L, dtype=torch.bool).tril()


def heads(length=L, rows=B, dtype=torch.float64, seed=0):
    """Queries, keys and values, (B, H, L, K) each."""
    generator = seeded(seed)
    return [torch.randn(rows, H, length, K, generator=generator).to(dtype).requires_grad_() for _ in range(3)]


def padding(*lengths, width=L):
    """Rows with so many real keys at the left. (B, 1, 1, M)"""
    return (torch.arange(width) < torch.tensor(lengths)[:, None])[:, None, None]


SIGHTS = {
    "everything": Sight(),
    "the past": Sight(causal=True),
    "no padding": Sight(padding(4, 2)),
    "no padding at the left": Sight(padding(4, 2).flip(-1)),
    "the past without padding": Sight(padding(4, 2) & PAST),
    "the past without padding at the left": Sight(padding(4, 2).flip(-1) & PAST),  # two queries see nothing
    "a mask for each query": Sight(torch.rand(B, 1, L, L, generator=seeded(1)) < 0.6),
    "a mask for each head": Sight(torch.rand(1, H, L, L, generator=seeded(2)) < 0.6),
    "nothing in one row": Sight(padding(4, 0)),
    "nothing at all": Sight(padding(0, 0)),
}
sights = pytest.mark.parametrize("sight", SIGHTS.values(), ids=[name.replace(" ", "_") for name in SIGHTS])
biases = pytest.mark.parametrize("rows", [0, 1, B], ids=["no_bias", "one_bias", "bias_for_each_row"])


def bias_for(rows, dtype=torch.float64):
    """A bias (rows, H, L, L), or none."""
    return torch.randn(rows, H, L, L, generator=seeded(3)).to(dtype).requires_grad_() if rows else None


def with_gradients(output, inputs):
    direction = torch.randn(output.shape, generator=seeded(4)).to(output.dtype)
    return [output, *torch.autograd.grad((output * direction).sum(), [i for i in inputs if i is not None])]


def test_the_lectures_example_has_weights_of_88_and_12_percent():
    q = torch.ones(1, 1, 1, 64)
    k = torch.tensor([112 / 64, 96 / 64])[:, None].expand(2, 64)[None, None]
    assert (q @ k.mT).flatten().tolist() == [112, 96]
    output, weights = attend_explicitly(q, k, torch.eye(2)[None, None], Sight())
    assert [round(w, 2) for w in weights.flatten().tolist()] == [0.88, 0.12]
    assert torch.equal(output, weights)


def test_the_lectures_scores_are_14_and_12_after_scaling():
    """Beside a key whose score is 0, the logarithms of the weights tell the scores."""
    q = torch.ones(1, 1, 1, 64, dtype=torch.float64)
    k = torch.tensor([112 / 64, 96 / 64, 0], dtype=torch.float64)[:, None].expand(3, 64)[None, None]
    _, weights = attend_explicitly(q, k, k, Sight())
    assert_close((weights / weights[..., -1:]).log().flatten().tolist(), [14.0, 12.0, 0.0], within=1e-12)


@biases
@sights
def test_the_fused_route_is_the_explicit_route_forward_and_backward(sight, rows):
    inputs = [*heads(), bias_for(rows)]
    q, k, v, bias = inputs
    fused = with_gradients(attend(q, k, v, sight, bias), inputs)
    explicit = with_gradients(attend_explicitly(q, k, v, sight, bias)[0], inputs)
    assert_close(fused, explicit, within=1e-12)


@pytest.mark.parametrize("rows", [1, B], ids=["one_bias", "bias_for_each_row"])
@sights
def test_the_routes_agree_on_a_bias_that_is_not_learned(sight, rows):
    q, k, v = heads()
    bias = bias_for(rows).detach()
    fused = with_gradients(attend(q, k, v, sight, bias), (q, k, v))
    assert_close(fused, with_gradients(attend_explicitly(q, k, v, sight, bias)[0], (q, k, v)), within=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=["64", "32", "b16"])
@pytest.mark.parametrize("route", [attend, lambda *a: attend_explicitly(*a)[0]], ids=["fused", "explicit"])
@biases
def test_a_query_that_may_see_nothing_gets_zeros_and_finite_gradients(route, rows, dtype):
    inputs = [*heads(dtype=dtype), bias_for(rows, dtype)]
    mask = torch.ones(B, 1, L, L, dtype=torch.bool)
    mask[0, :, 1] = mask[1] = False
    output, *gradients = with_gradients(route(*inputs[:3], Sight(mask), inputs[3]), inputs)
    assert (output[0, :, 1] == 0).all()
    assert (output[1] == 0).all()
    assert (output[0, :, [0, 2, 3]] != 0).all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all((gradient[0] != 0).any() for gradient in gradients)


@biases
@sights
def test_weights_are_zero_on_hidden_keys_and_sum_to_one(sight, rows):
    q, k, v = heads()
    _, weights = attend_explicitly(q, k, v, sight, bias_for(rows))
    mask = sight.written_out(q)
    seen = torch.ones(B, H, L, L, dtype=torch.bool) if mask is None else mask.expand(B, H, L, L)
    assert (weights[~seen] == 0).all()
    assert_close(weights.sum(-1), seen.any(-1).double(), within=1e-12)


@pytest.mark.parametrize("route", [attend, lambda *a: attend_explicitly(*a)[0]], ids=["fused", "explicit"])
@biases
@sights
def test_gradients_are_those_of_finite_differences(route, sight, rows):
    q, k, v = heads()
    inputs = [q, k, v] + ([bias_for(rows)] if rows else [])
    assert torch.autograd.gradcheck(
        lambda q, k, v, bias=None: route(q, k, v, sight, bias), inputs, fast_mode=True, nondet_tol=0.0
    )


def test_a_sight_of_tokens_among_themselves():
    real = torch.tensor([[True, True, False], [False, True, True]])
    assert Sight.among(None, causal=False) == Sight()
    assert Sight.among(None, causal=True) == Sight(causal=True)
    assert Sight.among(real, causal=False).mask.expand(2, 1, 3, 3).int().tolist() == [
        [[[1, 1, 0], [1, 1, 0], [1, 1, 0]]],
        [[[0, 1, 1], [0, 1, 1], [0, 1, 1]]],
    ]
    assert Sight.among(real, causal=True).mask.int().tolist() == [
        [[[1, 0, 0], [1, 1, 0], [1, 1, 0]]],
        [[[0, 0, 0], [0, 1, 0], [0, 1, 1]]],
    ]


# Many heads ------------------------------------------------------------------------------------------


def naive(x, memory, w_q, w_k, w_v, w_o, sees):
    """Multi-head attention in plain loops over row, head, query and key, on lists of numbers' rows."""
    output = torch.zeros(*x.shape[:2], w_o.shape[0], dtype=x.dtype)
    width = w_q.shape[0] // H
    for b, i in itertools.product(range(x.shape[0]), range(x.shape[1])):
        found = torch.zeros(w_q.shape[0], dtype=x.dtype)
        for h in range(H):
            mine = slice(h * width, (h + 1) * width)
            exps = {}
            for j in range(memory.shape[1]):
                if sees(b, i, j):
                    exps[j] = math.exp((w_q @ x[b, i])[mine] @ (w_k @ memory[b, j])[mine] / math.sqrt(width))
            for j, e in exps.items():
                found[mine] += e / sum(exps.values()) * (w_v @ memory[b, j])[mine]
        output[b, i] = w_o @ found
    return output


@pytest.mark.parametrize("causal", [False, True], ids=["both_ways", "causal"])
@pytest.mark.parametrize("d_head", [8, 5], ids=["square", "other_width"])
@torch.no_grad()
def test_attention_is_a_loop_over_row_head_query_and_key(causal, d_head):
    model = small_model("decoder_only" if causal else "encoder_only", d_head=d_head)
    part, real = model.stack.layers[0].attention, torch.tensor([[True] * 4, [True, True, False, False]])
    x = torch.randn(2, 4, 16, dtype=torch.float64, generator=seeded(5))
    got = part(x, begin(random_ids(2, 4, seeded(6)), real, causal=causal))
    expected = naive(
        x, x, *part.qkv.weight.chunk(3), part.output.weight, lambda b, i, j: real[b, j] and (j <= i or not causal)
    )
    assert_close(got, expected, within=1e-12)


@torch.no_grad()
def test_cross_attention_is_a_loop_over_row_head_query_and_key():
    model = small_model()
    part, real = model.decoder.layers[0].cross, torch.tensor([[True] * 3, [True, False, False]])
    x = torch.randn(2, 4, 16, dtype=torch.float64, generator=seeded(7))
    memory = model.encode(random_ids(2, 3, seeded(8)), real)
    got = part(x, begin(random_ids(2, 4, seeded(9)), None, causal=True, memory=memory))
    expected = naive(
        x, memory.states[0], part.q.weight, *part.kv.weight.chunk(2), part.output.weight, lambda b, i, j: real[b, j]
    )
    assert_close(got, expected, within=1e-12)


# Word order ------------------------------------------------------------------------------------------

MAN, EATS, SMALL, DINOSAUR, STOP = SENTENCE = (7, 12, 25, 31, 44)  # "Man eats small dinosaur."


def encoded(model, words):
    memory = model.encode(torch.tensor([words]))
    return memory.states[-1][0] if model.kind == "encoder_decoder" else memory[0]


@pytest.mark.parametrize("kind", ["encoder_decoder", "encoder_only"])
@torch.no_grad()
def test_without_positions_permuting_the_words_permutes_the_output(kind):
    model = small_model(kind, ["no_positions"])
    states = encoded(model, SENTENCE)
    for order in itertools.permutations(range(4)):
        order = [*order, 4]
        assert_close(encoded(model, [SENTENCE[i] for i in order]), states[order], within=1e-12)


@pytest.mark.parametrize("kind", ["encoder_decoder", "encoder_only"])
@pytest.mark.parametrize("position", [name for name in POSITIONS if name != "none"])
@torch.no_grad()
def test_with_positions_man_eats_dinosaur_is_not_dinosaur_eats_man(kind, position):
    model = small_model(kind, POSITIONS[position])
    eats = [encoded(model, words)[words.index(EATS)] for words in (SENTENCE, (DINOSAUR, EATS, SMALL, MAN, STOP))]
    assert (eats[0] - eats[1]).abs().max() > 1e-6


# Hypotheses of one sentence --------------------------------------------------------------------------


@pytest.mark.parametrize("route", [attend, lambda *a: attend_explicitly(*a)[0]], ids=["fused", "explicit"])
def test_folding_hypotheses_is_repeating_the_memory_for_each(route):
    sentences, hypotheses = 2, 3
    q = heads(rows=sentences * hypotheses)[0]
    _, k, v = heads(length=5, rows=sentences, seed=1)
    mask = padding(5, 3, width=5)
    folded = fold(q, sentences)
    assert folded.shape == (sentences, H, hypotheses * L, K)
    assert torch.equal(unfold(folded, sentences * hypotheses), q)
    repeated = [t.repeat_interleave(hypotheses, 0) for t in (k, v, mask)]
    expected = route(q, *repeated[:2], Sight(repeated[2]))
    assert_close(unfold(route(folded, k, v, Sight(mask)), sentences * hypotheses), expected, within=1e-12)
