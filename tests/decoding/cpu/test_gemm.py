"""Products by tiles: what one line of numpy says, for any number of rows, inputs and outputs."""

import numpy as np
import pytest
import torch

from sixfold.decoding.cpu import gemm
from sixfold.decoding.cpu import layers as rows
from sixfold.decoding.cpu.int8 import Int8Linear
from sixfold.decoding.cpu.layers import Desk, Sheet, laid_out, map_of
from sixfold.decoding.cpu.llvm import ADD, POSITIVE, SET, knows_tiles
from tests.support.small import seeded

SIZES = [(1, 1), (3, 65), (4, 64), (7, 130), (64, 63), (130, 1), (256, 200)]
HOW = {SET: lambda y, value: value, ADD: lambda y, value: y + value, POSITIVE: lambda y, value: value.clip(0)}

if_known = pytest.mark.skipif(not knows_tiles(np.uint8), reason="this CPU has no instruction for it")


def random(*shape, seed=1):
    return torch.randn(*shape, generator=seeded(seed)).numpy()


@if_known
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_products_of_floats(inputs, outputs):
    weight, bias = random(outputs, inputs), random(outputs, seed=2)
    panels = gemm.panels(weight)
    for number in range(1, 15):
        x, before = random(number, inputs, seed=number), random(number, outputs, seed=3)
        for how, after in HOW.items():
            y = before.copy()
            gemm.multiply(x, panels, gemm.filled_up(bias), how, y)
            exact = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
            np.testing.assert_allclose(y, after(before, exact), atol=1e-4)


@if_known
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_products_of_whole_numbers_are_exact(inputs, outputs):
    """Of rows that whole numbers can hold: with a largest of 127, and sums that a float can hold."""
    weight = np.random.default_rng(1).integers(-127, 128, (outputs, inputs)).astype(np.int8)
    bias, scale = np.arange(outputs, dtype=np.float32), np.full(outputs, 1 / 127, np.float32)
    panels = gemm.whole_panels(weight)
    for number in range(1, 15):
        x = np.random.default_rng(number).integers(-127, 128, (number, inputs)).astype(np.float32)
        x[:, 0], before = 127, np.ones((number, outputs), np.float32)
        for how, after in HOW.items():
            y = before.copy()
            gemm.multiply_whole(x, panels, gemm.filled_up(scale), gemm.filled_up(bias), how, y)
            np.testing.assert_allclose(y, after(before, x @ weight.T.astype(np.float32) + bias), rtol=1e-6, atol=1e-2)


@if_known
@pytest.mark.parametrize("whole", [False, True])
def test_what_is_no_number_stays_none_and_spoils_no_other_row(whole, monkeypatch):
    linear, desk = torch.nn.Linear(24, 70), Desk()
    made = map_of(Int8Linear(linear) if whole else linear, desk)
    desk.clear(3)
    x, alone = Sheet.of(torch.randn(3, 24)), Sheet.of(torch.empty(3, 70))
    made.positive(x, alone)
    x.array[1, 5] = np.nan
    together = Sheet.of(torch.empty(3, 70))
    made.positive(x, together)
    assert np.isnan(together.array[1]).all()
    assert np.array_equal(together.array[[0, 2]], alone.array[[0, 2]])


@if_known
@pytest.mark.parametrize("way", ["__call__", "add", "positive"])
def test_our_product_of_whole_numbers_is_torchs_to_the_last_bit(way, monkeypatch):
    linear = torch.nn.Linear(96, 200)
    x, desk = Sheet.of(torch.randn(40, 96, generator=seeded(1))), Desk()
    desk.clear(40)
    found = []
    for panels in (True, False):
        made = map_of(Int8Linear(linear), desk)
        if not panels:
            made.matrix.panels = None
        y = Sheet.of(torch.ones(40, 200))
        with monkeypatch.context() as here:
            here.setattr(rows, "_FEW", 1000)
            getattr(made, way)(x, y)
        found.append(y.array.copy())
    assert np.array_equal(*found)


@if_known
def test_few_rows_of_floats_are_about_what_many_are():
    """They come by another way, and are rounded otherwise."""
    linear = torch.nn.Linear(64, 100)
    x, found = torch.randn(40, 64, generator=seeded(1)), {}
    for size in (2, 40):
        desk = Desk()
        desk.clear(size)
        parts = []
        for part in x.split(size):
            y = Sheet.of(torch.empty(size, 100))
            map_of(linear, desk)(Sheet.of(part), y)
            parts.append(y.tensor)
        found[size] = torch.cat(parts)
    torch.testing.assert_close(found[2], found[40], atol=1e-5, rtol=0)


def test_weights_are_laid_out_anew_when_they_have_changed():
    linear = torch.nn.Linear(8, 8)
    before = laid_out(linear.weight)
    assert laid_out(linear.weight) is before
    with torch.no_grad():
        linear.weight[0, 0] += 1
    assert laid_out(linear.weight) is not before
