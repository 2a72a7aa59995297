"""Distributions are as declared; parts that are made by themselves have their weights at once."""

import math

import pytest
import torch
from torch import nn

from sixfold.core.init import Glorot, Normal, Truncated, Uniform, declare, linear, normal, parameter, truncated
from tests.support.small import seeded

# Each, for (200, 300), with its standard deviation and its largest number. Cutting a normal at two deviations leaves
# √(1 − 4 φ(2) / (2 Φ(2) − 1)) = 0.8796 of its deviation; a uniform one has bound/√3; Glorot's bound is √(6/500).
DISTRIBUTIONS = [
    (Normal(0.3), 0.3, 0.3 * 6),
    (Truncated(0.3), 0.3 * 0.8796, 0.6),
    (Uniform(0.3), 0.3 / math.sqrt(3), 0.3),
    (Glorot(), math.sqrt(6 / 500 / 3), math.sqrt(6 / 500)),
]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("start", "deviation", "most"), DISTRIBUTIONS, ids=lambda each: str(each)[:9])
def test_a_distribution_is_as_declared(start, deviation, most, dtype):
    weight = torch.empty(200, 300, dtype=dtype)
    start(weight, generator=seeded(1))
    numbers = weight.double()
    assert numbers.std().item() == pytest.approx(deviation, rel=0.02)
    assert abs(numbers.mean().item()) < 4 * deviation / math.sqrt(60_000)
    assert numbers.abs().max() <= most * (1 + 2 * torch.finfo(dtype).eps)
    assert weight.unique().numel() > 100


@pytest.mark.parametrize("start", [each[0] for each in DISTRIBUTIONS], ids=lambda each: str(each)[:9])
def test_all_its_numbers_come_from_the_generator(start):
    before, (one, same, other) = torch.get_rng_state(), (torch.empty(40, 50) for _ in range(3))
    for weight, seed in ((one, 1), (same, 1), (other, 2)):
        start(weight, generator=seeded(seed))
    assert torch.equal(one, same)
    assert not (one == other).any()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_truncated_normal_has_the_shape_of_a_normal_inside():
    """P(|x| < σ | |x| < 2σ) = 0.6827 / 0.9545."""
    weight = torch.empty(1000, 1000)
    Truncated(0.5)(weight, generator=seeded(3))
    assert (weight.abs() < 0.5).double().mean().item() == pytest.approx(0.6827 / 0.9545, abs=0.002)
    assert 0.999 < weight.abs().max().item() <= 1


def test_a_part_by_itself_is_drawn_at_once_from_torchs_generator():
    def part():
        torch.manual_seed(7)
        return parameter((30, 20), Normal(0.5)), linear(400, 30, truncated)

    (one, matrix), (same, _) = part(), part()
    assert torch.equal(one, same)
    assert one.std().item() == pytest.approx(0.5, rel=0.1)
    assert 1.9 < matrix.weight.abs().max().item() * 20 <= 2
    assert matrix.bias.eq(0).all()


def test_the_last_declaration_counts():
    matrix = linear(400, 30)
    declare(matrix.weight, Uniform(3))
    assert matrix.weight.abs().max().item() == pytest.approx(3, rel=0.01)


def test_linear_is_an_nn_linear_for_which_torch_draws_nothing():
    before = torch.get_rng_state()
    with torch.device("meta"):
        nowhere = linear(4, 5, bias=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert (type(nowhere), nowhere.weight.is_meta, nowhere.bias) == (nn.Linear, True, None)
    matrix = linear(4, 5)
    assert (type(matrix), matrix.weight.shape, matrix.bias.shape) == (nn.Linear, (5, 4), (5,))
    assert matrix.weight.requires_grad
    assert matrix.bias.requires_grad


@pytest.mark.parametrize("start", [normal, truncated])
def test_torchs_own_draw_is_overwritten(start):
    torch.manual_seed(1)
    matrix = nn.Linear(100, 50)
    old = matrix.weight.detach().clone()
    assert start(matrix) is matrix
    assert not (matrix.weight == old).any()
    assert matrix.bias.eq(0).all()
