"""Gated feed-forwards."""

import math
from dataclasses import replace

import pytest
import torch

import sixfold
from sixfold.narang.rows import BASELINE
from tests.support.small import assert_close, seeded, small_model

PLAIN = {"glu": "sigmoid", "geglu": "gelu", "geglu:form=tanh": "gelu:form=tanh", "reglu": None, "swiglu": "swish"}
GATES = {
    "glu": lambda a: 1 / (1 + math.exp(-a)),
    "geglu": lambda a: a / 2 * (1 + math.erf(a / math.sqrt(2))),
    "reglu": lambda a: max(a, 0),
    "swiglu": lambda a: a / (1 + math.exp(-a)),
    "liglu": lambda a: a,
}
every = pytest.mark.parametrize("name", GATES)


def feed_forward(*wishes):
    """One whose biases say something, too."""
    part = small_model("encoder_only", wishes).stack.layers[0].feed_forward
    with torch.no_grad():
        part.inner.bias.normal_(generator=seeded(2))
        part.outer.bias.normal_(generator=seeded(3))
    return part


def inputs():
    return torch.randn(2, 3, 16, dtype=torch.float64, generator=seeded(1))


@every
@torch.no_grad()
def test_the_formula_number_by_number(name):
    part, x = feed_forward(name), inputs()
    (w_a, w_b), (b_a, b_b) = part.inner.weight.chunk(2), part.inner.bias.chunk(2)
    got = part(x, None)
    for row in range(2):
        for t in range(3):
            products = [
                GATES[name](float(w_a[i] @ x[row, t] + b_a[i])) * float(w_b[i] @ x[row, t] + b_b[i]) for i in range(32)
            ]
            expected = part.outer.weight @ torch.tensor(products, dtype=torch.float64) + part.outer.bias
            assert_close(got[row, t], expected, within=1e-12)


@pytest.mark.parametrize("name", PLAIN)
@torch.no_grad()
def test_with_an_open_gate_it_is_the_plain_layer(name):
    """x W_b + b_b = 1 everywhere: what is left is φ(x W_a + b_a) W₂ + b₂."""
    gated, plain, x = feed_forward(name), feed_forward(*filter(None, [PLAIN[name]])), inputs()
    gated.inner.weight[32:] = 0
    gated.inner.bias[32:] = 1
    plain.inner.weight.copy_(gated.inner.weight[:32])
    plain.inner.bias.copy_(gated.inner.bias[:32])
    plain.outer.load_state_dict(gated.outer.state_dict())
    assert_close(gated(x, None), plain(x, None), within=1e-12)


@torch.no_grad()
def test_without_a_function_it_is_quadratic():
    part, x = feed_forward("liglu"), inputs()
    part.inner.bias.zero_()
    part.outer.bias.zero_()
    assert_close(part(2 * x, None), 4 * part(x, None), within=1e-12)


@every
def test_two_thirds_of_the_width_keep_the_number_of_weights(name):
    """3 · 768 · 2048 = 2 · 768 · 3072 in each layer; biases are 2 · 2048 + 768 instead of 3072 + 768."""
    plain = sixfold.build(BASELINE, device="meta")
    narrow = sixfold.build(replace(BASELINE, d_ff=2048), [name], device="meta")
    for model, biases in ((plain, 3072 + 768), (narrow, 2 * 2048 + 768)):
        part = model.encoder.layers[0].feed_forward
        assert sum(p.numel() for p in part.parameters()) == 4_718_592 + biases


def test_an_activation_that_it_would_ignore_is_refused():
    with pytest.raises(ValueError, match="'gelu' fills the slot 'activation', which nothing reads: Gated"):
        small_model(modifications=("gelu", "swiglu"))
