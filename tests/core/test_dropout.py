"""Dropout from 16 random bits for each number."""

from __future__ import annotations

import pytest
import torch

from sixfold.core.dropout import Dropout

MANY = 1_000_000
SHARES = pytest.mark.parametrize("p", [0.1, 0.3, 0.5])


def rounded(p: float) -> float:
    return round(p * 65536) / 65536


def dropped(p: float, *shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Dropout of ones: the noise itself."""
    torch.manual_seed(seed)
    return Dropout(p)(torch.ones(shape, dtype=dtype))


def test_nothing_is_dropped_in_evaluation_or_with_p_0():
    x = torch.randn(5, 7)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


@SHARES
def test_the_share_of_zeros_is_p(p):
    zeros = (dropped(p, MANY) == 0).double().mean().item()
    assert abs(zeros - rounded(p)) < 4 * (p * (1 - p) / MANY) ** 0.5


@SHARES
def test_what_is_kept_is_scaled_by_the_rounded_p(p):
    kept = dropped(p, 1000, dtype=torch.float64).unique().tolist()
    assert kept == [0.0, 65536 / (65536 - round(p * 65536))]


@SHARES
def test_the_mean_is_preserved(p):
    assert abs(dropped(p, MANY).double().mean().item() - 1) < 4 * (p / (1 - p) / MANY) ** 0.5


@pytest.mark.parametrize("shape", [(1,), (3,), (7, 5), (2, 3, 3), (0, 4), ()], ids=str)
def test_any_shape_will_do(shape):
    out = dropped(0.5, *shape)
    assert out.shape == shape
    assert set(out.flatten().tolist()) <= {0.0, 2.0}


def test_each_number_of_an_odd_size_is_dropped_alike():
    torch.manual_seed(1)
    dropout, x = Dropout(0.5), torch.ones(7)
    zeros = torch.stack([dropout(x) == 0 for _ in range(4000)]).double().mean(0)
    assert ((zeros - 0.5).abs() < 4 * (0.25 / 4000) ** 0.5).all()


def test_a_seed_fixes_the_noise_and_calls_differ():
    assert torch.equal(dropped(0.3, 100), dropped(0.3, 100))
    assert not torch.equal(dropped(0.3, 100), dropped(0.3, 100, seed=2))
    dropout, x = Dropout(0.3), torch.ones(100)
    assert not torch.equal(dropout(x), dropout(x))


def test_the_gradient_is_the_noise():
    x, factors = torch.randn(6, 11, requires_grad=True), torch.randn(6, 11)
    torch.manual_seed(1)
    out = Dropout(0.3)(x)
    (out * factors).sum().backward()
    noise = dropped(0.3, 6, 11)
    assert torch.equal(out, x * noise)
    assert torch.equal(x.grad, factors * noise)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_the_dtype_is_kept(dtype):
    noise = dropped(0.5, 1000, dtype=dtype)
    assert noise.dtype == dtype
    assert torch.equal(noise.double(), dropped(0.5, 1000, dtype=torch.float64))


def test_x_may_lie_in_memory_in_any_order():
    x = torch.randn(8, 6)
    torch.manual_seed(1)
    out = Dropout(0.5)(x.T)
    assert torch.equal(out, x.T * dropped(0.5, 6, 8))


@SHARES
@pytest.mark.parametrize("lag", [1, 2, 3, 4])
def test_neighbours_are_dropped_independently(p, lag):
    zeros = (dropped(p, MANY) == 0).double() - rounded(p)
    correlation = (zeros[:-lag] * zeros[lag:]).mean() / (p * (1 - p))
    assert abs(correlation.item()) < 4 / MANY**0.5


@pytest.mark.parametrize("p", [1 - 2**-16, 1 - 1e-6, 1.0])
def test_nearly_everything_may_be_dropped(p):
    """16 bits cannot count to 65536: what rounds to p = 1 must drop everything, not nothing."""
    zeros = (dropped(p, 10_000) == 0).double().mean().item()
    assert zeros > 0.99


def test_it_says_its_p():
    assert repr(Dropout(0.25)) == "Dropout(p=0.25)"
