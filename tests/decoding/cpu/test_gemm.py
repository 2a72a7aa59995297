"""Products by tiles: what one line of numpy says, for any number of rows, inputs and outputs."""

import numpy as np
import pytest
import torch

from sixfold.decoding.cpu import gemm
from sixfold.decoding.cpu import layers as rows
from sixfold.decoding.cpu.int8 import Int8Linear
from sixfold.decoding.cpu.layers import Buffer, Scratch, map_of
from sixfold.decoding.cpu.llvm import ADD, RELU, SET, has_tiles
from tests.support.small import seeded

SIZES = [(1, 1), (3, 65), (4, 64), (7, 130), (64, 63), (130, 1), (256, 200)]
HOW = {SET: lambda y, value: value, ADD: lambda y, value: y + value, RELU: lambda y, value: value.clip(0)}

if_known = pytest.mark.skipif(not has_tiles(np.uint8), reason="this CPU has no instruction for it")
if_fused = pytest.mark.skipif(not has_tiles(np.float32), reason="this CPU has no fused multiply-add")


def random(*shape, seed=1):
    return torch.randn(*shape, generator=seeded(seed)).numpy()


@if_fused
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_products_of_floats(inputs, outputs):
    weight, bias = random(outputs, inputs), random(outputs, seed=2)
    panels = gemm.panels(weight)
    for number in range(1, 15):
        x, before = random(number, inputs, seed=number), random(number, outputs, seed=3)
        for how, after in HOW.items():
            y = before.copy()
            gemm.multiply(x, panels, gemm.padded(bias), how, y)
            exact = x.astype(np.float64) @ weight.T.astype(np.float64) + bias
            np.testing.assert_allclose(y, after(before, exact), atol=1e-4)


@if_known
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_products_of_int8_are_exact(inputs, outputs):
    """Of rows that int8 can hold: with a largest of 127, and sums that a float can hold."""
    weight = np.random.default_rng(1).integers(-127, 128, (outputs, inputs)).astype(np.int8)
    bias, scale = np.arange(outputs, dtype=np.float32), np.full(outputs, 1 / 127, np.float32)
    panels = gemm.int8_panels(weight)
    for number in range(1, 15):
        x = np.random.default_rng(number).integers(-127, 128, (number, inputs)).astype(np.float32)
        x[:, 0], before = 127, np.ones((number, outputs), np.float32)
        for how, after in HOW.items():
            y = before.copy()
            gemm.multiply_int8(x, panels, gemm.padded(scale), gemm.padded(bias), how, y)
            np.testing.assert_allclose(y, after(before, x @ weight.T.astype(np.float32) + bias), rtol=1e-6, atol=1e-2)


@if_known
@pytest.mark.parametrize("int8", [False, True])
def test_nan_stays_nan_and_changes_no_other_row(int8):
    linear, scratch = torch.nn.Linear(24, 70), Scratch()
    made = map_of(Int8Linear(linear) if int8 else linear, scratch)
    scratch.clear(3)
    x, alone = Buffer.of(torch.randn(3, 24)), Buffer.of(torch.empty(3, 70))
    made.relu(x, alone)
    x.array[1, 5] = np.nan
    together = Buffer.of(torch.empty(3, 70))
    made.relu(x, together)
    assert np.isnan(together.array[1]).all()
    assert np.array_equal(together.array[[0, 2]], alone.array[[0, 2]])


@if_known
@pytest.mark.parametrize("way", ["__call__", "add", "relu"])
def test_our_product_of_int8_is_torchs_to_the_last_bit(way, monkeypatch):
    linear = torch.nn.Linear(96, 200)
    x, scratch = Buffer.of(torch.randn(40, 96, generator=seeded(1))), Scratch()
    scratch.clear(40)
    found = []
    for panels in (True, False):
        made = map_of(Int8Linear(linear), scratch)
        if not panels:
            made.matrix.panels = None
        y = Buffer.of(torch.ones(40, 200))
        with monkeypatch.context() as here:
            here.setattr(rows, "_FEW", 1000)
            getattr(made, way)(x, y)
        found.append(y.array.copy())
    assert np.array_equal(*found)


@if_fused
def test_few_rows_of_floats_are_what_many_are():
    linear, scratch = torch.nn.Linear(64, 100), Scratch()
    x, found = torch.randn(40, 64, generator=seeded(1)), {}
    for size in (2, 40):
        scratch.clear(size)
        parts = []
        for part in x.split(size):
            y = Buffer.of(torch.empty(size, 100))
            map_of(linear, scratch)(Buffer.of(part), y)
            parts.append(y.tensor)
        found[size] = torch.cat(parts)
    assert torch.equal(found[2], found[40])


def test_layers_that_share_a_part_share_its_map():
    linear, other, scratch = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), Scratch()
    assert map_of(linear, scratch) is map_of(linear, scratch)
    assert map_of(linear, scratch) is not map_of(other, scratch)
