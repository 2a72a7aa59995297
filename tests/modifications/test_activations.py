"""Activations: values computed by hand, and the layer they stand in."""

import math

import pytest
import torch

from tests.support.small import assert_close, seeded, small_model

NAMES = ("gelu", "gelu:form=tanh", "swish", "elu", "selu", "sigmoid", "softplus")


def feed_forward(wish):
    return small_model("encoder_only", (wish,)).stack.layers[0].feed_forward


@pytest.mark.parametrize(
    ("wish", "at", "value"),
    [
        ("gelu", 1, 0.841345),
        ("gelu:form=tanh", 1, 0.841192),
        ("swish", 1, 0.731059),
        ("elu", -1, -0.632121),
        ("elu", 2, 2),
        ("selu", -1, -1.111331),
        ("selu", 2, 2.101402),
        ("sigmoid", 0, 0.5),
        ("softplus", 0, 0.693147),
    ],
)
def test_values_by_hand(wish, at, value):
    assert feed_forward(wish).activation(torch.tensor(at, dtype=torch.float64)).item() == pytest.approx(value, abs=1e-6)


def exactly(wish, h):
    """φ of one number."""
    form = {
        "gelu": lambda: h / 2 * (1 + math.erf(h / math.sqrt(2))),
        "gelu:form=tanh": lambda: h / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))),
        "swish": lambda: h / (1 + math.exp(-h)),
        "elu": lambda: h if h > 0 else math.expm1(h),
        "selu": lambda: 1.0507009873554805 * (h if h > 0 else 1.6732632423543772 * math.expm1(h)),
        "sigmoid": lambda: 1 / (1 + math.exp(-h)),
        "softplus": lambda: max(h, 0) + math.log1p(math.exp(-abs(h))),
    }
    return form[wish]()


@pytest.mark.parametrize("wish", NAMES)
def test_the_formula_on_small_and_large_numbers(wish):
    values = [-50.0, -20.0, -3.0, -0.1, 0.0, 0.1, 3.0, 15.0, 19.0, 21.0, 30.0, 50.0]
    got = feed_forward(wish).activation(torch.tensor(values, dtype=torch.float64))
    assert_close(got, torch.tensor([exactly(wish, h) for h in values], dtype=torch.float64), within=1e-13)


@pytest.mark.parametrize("wish", NAMES)
@torch.no_grad()
def test_it_stands_between_the_two_matrices(wish):
    part, x = feed_forward(wish), torch.randn(2, 3, 16, dtype=torch.float64, generator=seeded(1))
    part.inner.bias.normal_(generator=seeded(2))
    got = part(x, None)
    for row in range(2):
        for t in range(3):
            inner = [float(x[row, t] @ w + b) for w, b in zip(part.inner.weight, part.inner.bias, strict=True)]
            inner = torch.tensor([exactly(wish, h) for h in inner], dtype=torch.float64)
            assert_close(got[row, t], part.outer.weight @ inner + part.outer.bias, within=1e-12)


def test_a_form_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="one of erf, tanh, got 'sigmoid'"):
        small_model(modifications=("gelu:form=sigmoid",))
