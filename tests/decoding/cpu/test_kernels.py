"""Compiled loops do what one line of torch says, and each row is computed by itself."""

import importlib
import math

import numpy as np
import pytest
import torch

from sixfold.decoding.cpu import kernels, llvm
from tests.support.small import seeded

SEQUENCES, SLOTS, HEADS = 5, 7, 2


def random(*shape, seed=1):
    return torch.randn(*shape, generator=seeded(seed)).numpy()


def test_int8_by_hand():
    x = np.array([[1.27, -0.5, 0.004], [0, 0, 0], [-254, 127, 3]], np.float32)
    int8, largest = np.empty((3, 3), np.int8), np.empty(3, np.float32)
    kernels.quantise(x, int8, largest)
    assert int8.tolist() == [[127, -50, 0], [0, 0, 0], [-127, 64, 2]]
    assert largest.tolist() == pytest.approx([1.27, kernels.LEAST, 254])


@pytest.mark.parametrize("width", [1, 63, 64, 200])
def test_int8_is_that_of_numpy(width):
    x = random(9, width)
    int8, largest = np.empty(x.shape, np.int8), np.empty(9, np.float32)
    kernels.quantise(x, int8, largest)
    assert np.array_equal(largest, np.abs(x).max(1))
    off = int8 - np.rint(x * (np.float32(127) / largest[:, None]))
    assert np.abs(off).max() == 0


def test_scaling_by_its_definition():
    sums, largest = np.arange(-6, 6, dtype=np.int32).reshape(3, 4) * 1000, np.array([0.5, 2, 3], np.float32)
    scale, bias = np.array([1e-3, 2e-3, 3e-3, 4e-3], np.float32), np.array([1, 0, -1, 5], np.float32)
    expected = sums * scale * largest[:, None] + bias
    for how, after in ((llvm.SET, expected), (llvm.ADD, expected + 1), (llvm.RELU, expected.clip(0))):
        y = np.ones((3, 4), np.float32)
        kernels.rescale(sums, largest, scale, bias, how, y)
        np.testing.assert_allclose(y, after, rtol=1e-6, atol=1e-6)


def test_norms_are_those_of_torch():
    x, weight, bias = random(6, 40) * 3 + 1, random(40, seed=2), random(40, seed=3)
    expected = torch.layer_norm(torch.from_numpy(x), [40], torch.from_numpy(weight), torch.from_numpy(bias), 1e-6)
    y = np.empty_like(x)
    kernels.norm(x, weight, bias, 1e-6, y)
    np.testing.assert_allclose(y, expected, atol=2e-6)
    root = torch.nn.functional.rms_norm(torch.from_numpy(x), [40], torch.from_numpy(weight), 1e-6)
    kernels.rms_norm(x, weight, 40, 1e-6, x)  # in place
    np.testing.assert_allclose(x, root, atol=2e-6)


def test_embedding_by_its_definition():
    table, waves, x = random(9, 16), random(5, 16, seed=2), np.empty((3, 16), np.float32)
    kernels.embed(np.array([2, 8, 2]), table, waves, np.array([0, 4, 1]), x)
    np.testing.assert_allclose(x, table[[2, 8, 2]] * 4 + waves[[0, 4, 1]], atol=1e-6)


def states_and_scale(int8, width):
    states = np.empty((SEQUENCES, SLOTS, 2, HEADS, width), np.int8 if int8 else np.float32)
    return states, np.empty((SEQUENCES, SLOTS, 2, HEADS), np.float32) if int8 else None


def test_keys_and_values_are_written_to_their_slots():
    for int8 in (False, True):
        x, (states, scale) = random(2, 3, HEADS, 24), states_and_scale(int8, 24)
        kernels.write_kv(x, 1, states, scale, np.array([3, 1]), np.array([6, 0]))
        for row, (sequence, slot) in enumerate([(3, 6), (1, 0)]):
            found = states[sequence, slot] * (1 if scale is None else scale[sequence, slot][..., None])
            np.testing.assert_allclose(found, x[row, 1:], atol=0.5 * np.abs(x).max() / 127 if int8 else 0)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("width", [1, 8, 16, 20, 24, 56, 64, 128, 144])
def test_attention_by_its_definition(int8, width):
    """For each row and head by itself: Σ p v, p ∝ exp(q·k / √K) over the slots of its order. Heads fill vectors, or do
    not; or are too wide."""
    states, scale = states_and_scale(int8, width)
    sequence, slot = (axis.reshape(-1) for axis in np.meshgrid(np.arange(SEQUENCES), np.arange(SLOTS), indexing="ij"))
    kernels.write_kv(random(SEQUENCES * SLOTS, 2, HEADS, width), 0, states, scale, sequence, slot)
    q, y = random(4, 1, HEADS, width, seed=2), np.empty((4, HEADS, width), np.float32)
    order = np.array([[0, 5, 2, 6], [4, 3, 2, 1]])
    sequence, order_row, visible = np.array([0, 4, 2, 2]), np.array([0, 1, 1, 0]), np.array([4, 1, 3, 0])
    kernels.attend(q, states, scale, 0, sequence, order, order_row, visible, y)
    exact = states if scale is None else states * scale[..., None]
    for row in range(3):
        seen = exact[sequence[row], order[order_row[row], : visible[row]]]
        for h in range(HEADS):
            p = np.exp(seen[:, 0, h] @ q[row, 0, h] / math.sqrt(width))
            np.testing.assert_allclose(y[row, h], p / p.sum() @ seen[:, 1, h], atol=1e-5)
    assert (y[3] == 0).all(), "a row that sees nothing gets zeros"


def test_the_normaliser_is_that_of_torch():
    for scores in (random(4, 1003) * 20, random(2, 5) - 1e4, np.full((1, 3), 80, np.float32)):
        log_z = np.empty(len(scores), np.float32)
        kernels.log_normaliser(scores, log_z)
        np.testing.assert_allclose(log_z, torch.from_numpy(scores).logsumexp(-1), rtol=1e-6, atol=1e-5)


def test_the_exponential_over_all_of_its_range():
    """By the normaliser of two words: log(1 + e^−d)."""
    distance = np.linspace(0, 30, 5000, dtype=np.float32)
    scores, log_z = np.stack([np.zeros_like(distance), -distance], 1), np.empty(5000, np.float32)
    kernels.log_normaliser(np.ascontiguousarray(scores), log_z)
    np.testing.assert_allclose(log_z, np.log1p(np.exp(-distance.astype(np.float64))), atol=2e-7)


def test_what_is_kept_and_damaged_is_compiled_anew(tmp_path, monkeypatch):
    """And what can't be kept, for want of room, is compiled all the same."""
    (tmp_path / "twice.py").write_text("def twice(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)

    def kept():
        function = importlib.reload(importlib.import_module("twice")).twice
        kernel = kernels.kernel(function)
        assert kernel(3) == 6
        return kernel.stats.cache_hits[next(iter(kernel.stats.cache_hits))] if kernel.stats.cache_hits else 0

    assert [kept(), kept()] == [0, 1]
    (index,) = (tmp_path / "__pycache__").glob("twice.twice-*.nbi")
    index.write_bytes(index.read_bytes()[:40])
    assert [kept(), kept()] == [0, 1]
    index.unlink()

    def full(*what):
        raise OSError("no space left on device")

    with monkeypatch.context() as here:
        here.setattr("numba.core.caching.IndexDataCacheFile.save", full)
        assert [kept(), kept()] == [0, 0]
