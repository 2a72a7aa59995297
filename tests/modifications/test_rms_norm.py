"""RMS norm."""

import math

import pytest
import torch
from torch import nn

from sixfold.core.place import Place
from sixfold.modifications.rms_norm import RMSNorm
from sixfold.spec.spec import Spec
from tests.support.small import assert_close, seeded, small_model, small_sizes


def norm(fraction=1.0, width=16):
    part = RMSNorm(Spec(sizes=small_sizes(d_model=width)), Place("only", 1, False), fraction).double()
    with torch.no_grad():
        part.weight.normal_(generator=seeded(1))
    return part


def inputs(width=16):
    return torch.randn(2, 3, width, dtype=torch.float64, generator=seeded(2)) + 0.7


@pytest.mark.parametrize(("fraction", "channels"), [(1.0, 16), (0.5, 8), (0.3, 5), (1e-4, 1), (1e-9, 1)])
@torch.no_grad()
def test_the_formula_number_by_number(fraction, channels):
    part, x = norm(fraction), inputs()
    for row, got in zip(x.view(-1, 16).tolist(), part(x).view(-1, 16), strict=True):
        root = math.sqrt(sum(v * v for v in row[:channels]) / channels + 1e-6)
        expected = [g * v / root for g, v in zip(part.weight.tolist(), row, strict=True)]
        assert_close(got, torch.tensor(expected, dtype=torch.float64), within=1e-12)


def test_a_value_by_hand():
    """(3, 4): the mean of 9 and 16 is 12.5."""
    part = RMSNorm(Spec(sizes=small_sizes(d_model=2, heads=1)), Place("only", 1, False)).double()
    assert part(torch.tensor([[3.0, 4.0]]).double())[0].tolist() == pytest.approx([0.8485281, 1.1313708], abs=1e-6)


@torch.no_grad()
def test_on_vectors_of_mean_zero_it_is_layer_norm_without_bias():
    part, x = norm(), inputs()
    plain = nn.LayerNorm(16, eps=1e-6, dtype=torch.float64)
    plain.weight.copy_(part.weight)
    centred = x - x.mean(-1, keepdim=True)
    assert_close(part(centred), plain(centred), within=1e-12)
    assert (part(x) - plain(x)).abs().max() > 0.01  # and only on these


@pytest.mark.parametrize("fraction", [1.0, 0.25])
@torch.no_grad()
def test_the_scale_of_x_does_not_matter(fraction):
    part, x = norm(fraction), 1e3 * inputs()
    assert_close(part(7 * x), part(x), within=1e-8)


@pytest.mark.parametrize("fraction", [1.0, 0.3])
def test_the_gradient(fraction):
    part, x = norm(fraction), inputs().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, g: torch.func.functional_call(part, {"weight": g}, x), (x, part.weight))


def test_how_many_channels():
    assert norm(0.0675, width=768).channels == 52  # of the study
    assert norm(0.07, width=100).channels == 7  # though 0.07 · 100 is more than 7 in floating point


@torch.no_grad()
def test_half_precision_adds_up_squares_in_float32():
    """300² does not fit float16; and 1 + 2⁻¹⁰ + … would be lost term by term."""
    part = norm().to(torch.float16)
    x = (300 * inputs()).to(torch.float16)
    got = part(x)
    assert got.dtype == torch.float16
    assert_close(got.double(), norm()(x.double()), within=5e-3)


def test_every_norm_is_replaced():
    model = small_model(modifications=("rms_norm",))
    assert not any(isinstance(m, nn.LayerNorm) for m in model.modules())
    assert sum(isinstance(m, RMSNorm) for m in model.modules()) == 2 * 2 + 2 * 3 + 2


@pytest.mark.parametrize("fraction", [0, -1, 1.5, "nan"])
def test_a_fraction_that_is_none_is_refused(fraction):
    with pytest.raises(ValueError, match=f"at most 1, got {float(fraction)}"):
        small_model(modifications=(f"rms_norm:fraction={fraction}",))
