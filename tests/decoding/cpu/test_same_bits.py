"""FusedStep: a sentence has the same scores alone and in any company, bit for bit, in float32 and in int8.

And what this rests on: the order of each sum is written down, so that neither the number of rows and threads, nor where
they lie in memory, nor the compiler has a say in it.
"""

from random import Random

import numpy as np
import pytest
import torch

from sixfold import BOS, EOS
from sixfold.decoding.cpu import gemm, kernels
from sixfold.decoding.cpu import step as fused
from sixfold.decoding.cpu.int8 import quantised
from sixfold.decoding.cpu.layers import row_by_row
from sixfold.decoding.cpu.llvm import ADD, RELU, SET
from sixfold.decoding.cpu.numba_private import multiplies_and_adds
from sixfold.decoding.cpu.step import FusedStep
from sixfold.decoding.engine import Job, search
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.search.length_penalty import LengthPenalty
from tests.support.small import moved_model

WORDS, SENTENCES = 12, 38
METHODS = [Greedy(), Beam(3, n_best=3, length=LengthPenalty(0.6))]
# Sizes that fill vectors and such that do not, and every part that FusedStep computes itself.
MODELS = {
    "d2": ({"d_model": 2, "d_ff": 5, "heads": 1}, ()),
    "d3": ({"d_model": 3, "d_ff": 7, "heads": 1}, ()),
    "d8": ({"d_model": 8, "d_ff": 16, "heads": 2}, ("post_norm", "softplus")),
    "d16": ({"d_model": 16, "d_ff": 33, "heads": 2}, ("swiglu", "rotary")),
    "d16 d_head 20": ({"d_model": 16, "d_ff": 32, "d_head": 20}, ("gelu", "learned_positions")),
    "d64": ({"d_model": 64, "d_ff": 96, "heads": 2}, ("rms_norm:fraction=0.4", "softplus")),
}

on_this_cpu = pytest.mark.skipif(not multiplies_and_adds(), reason="without fused multiply-add, torch multiplies")


@pytest.fixture(params=[1, 2])
def threads(request, monkeypatch):
    """As many as this, and as many products as can be are divided among them."""
    before = torch.get_num_threads()
    monkeypatch.setattr(gemm, "_WORTH_A_THREAD", 1)
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def jobs():
    chance = Random(1)
    for number in range(SENTENCES):
        source = [*(chance.randrange(3, WORDS) for _ in range(chance.choice([1, 3, 8, 14, 30]))), EOS]
        yield Job(source=source, limit=chance.randrange(2, 7), tag=number)


@torch.inference_mode()
def found(step, method, numbers, batch_tokens=10**6):
    """{number: hypotheses}, whose numbers are compared as they are."""
    chosen = [job for job in jobs() if job.tag in numbers]
    return {job.tag: texts for job, texts in search(step, chosen, method, batch_tokens=batch_tokens)}


@on_this_cpu
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("int8", [False, True])
def test_a_sentence_alone_and_in_company(name, int8, threads, monkeypatch):
    monkeypatch.setattr(fused, "LONG", 25)  # some sources are read by torch's own attention
    sizes, modifications = MODELS[name]
    model = moved_model(modifications=modifications, vocab=WORDS, dtype=torch.float32, **sizes)
    step = FusedStep(quantised(model) if int8 else model)
    for method in METHODS:
        together = found(step, method, range(SENTENCES))
        for number in range(0, SENTENCES, 5):
            assert found(step, method, [number]) == {number: together[number]}
        in_turn = found(step, method, range(SENTENCES), 150 * method.width)  # they join and leave
        assert in_turn == together


@on_this_cpu
@torch.inference_mode()
def test_all_scores_of_a_step(threads):
    """Those that no search looks at, too."""
    model = moved_model(vocab=WORDS, dtype=torch.float32, d_model=2, d_ff=5, heads=1)
    step, sources = FusedStep(model), [job.source for job in jobs()]
    ids = torch.tensor([[BOS, *Random(n).choices(range(3, WORDS), k=5)] for n in range(SENTENCES)])
    together, state = [], step.begin(sources)
    for t in range(6):
        scores, log_z, state, *_ = step(ids[:, t : t + 1], state)
        together.append((scores.clone(), log_z.clone()))
    for number in range(0, SENTENCES, 4):
        state = step.begin(sources[number : number + 1])
        for t in range(6):
            scores, log_z, state, *_ = step(ids[number : number + 1, t : t + 1], state)
            assert torch.equal(scores[0], together[t][0][number])
            assert torch.equal(log_z[0], together[t][1][number])


def random(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@on_this_cpu
@pytest.mark.parametrize("mode", [SET, ADD, RELU])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (2, 12), (33, 65), (100, 200), (500, 130)])
def test_a_row_of_a_product_for_any_number_of_rows_and_threads(inputs, outputs, mode, monkeypatch):
    monkeypatch.setattr(gemm, "_WORTH_A_THREAD", 1)
    panels, bias = gemm.panels(random(outputs, inputs)), gemm.padded(random(outputs, seed=2))
    x, before = random(70, inputs, seed=3), random(70, outputs, seed=4)
    alone = before.copy()
    for row in range(70):
        gemm.multiply(x[row : row + 1], panels, bias, mode, alone[row : row + 1])
    for rows in (2, 3, 7, 11, 33, 70):
        for threads in (1, 2, 3):
            y = before[:rows].copy()
            gemm.multiply(x[:rows], panels, bias, mode, y, threads)
            assert np.array_equal(y, alone[:rows])


def summed(x):
    """In the order that `reductions.py` draws."""
    vectors = x[: len(x) // 16 * 16].reshape(-1, 16)
    totals, fours = np.zeros((4, 16), np.float32), len(vectors) // 4 * 4
    for four in vectors[:fours].reshape(-1, 4, 16):
        totals = totals + four
    lanes = (totals[0] + totals[1]) + (totals[2] + totals[3])
    for vector in vectors[fours:]:
        lanes = lanes + vector
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    total = lanes[0]
    for rest in x[vectors.size :]:
        total = total + rest
    return total


@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 100, 256, 300])
def test_norms_sum_in_the_order_that_is_drawn(width):
    x, weight, bias, y = (
        random(5, width),
        random(width, seed=2),
        random(width, seed=3),
        np.empty((5, width), np.float32),
    )
    y, one, epsilon = np.empty_like(x), np.float32(1), np.float32(1e-5)
    kernels.norm(x, weight, bias, 1e-5, y)
    for row, found in zip(x, y, strict=True):
        off = row - summed(row) / np.float32(width)
        times = one / np.sqrt(summed(off * off) / np.float32(width) + epsilon)
        assert np.array_equal(found, off * times * weight + bias)
    kernels.rms_norm(x, weight, max(1, width // 2), 1e-5, y)
    for row, found in zip(x, y, strict=True):
        part = row[: max(1, width // 2)]
        times = one / np.sqrt(summed(part * part) / np.float32(len(part)) + epsilon)
        assert np.array_equal(found, row * times * weight)


@pytest.mark.parametrize("width", [2, 8, 16, 33, 64, 100])
def test_numbers_between_two_integers_are_rounded_as_numpy_does(width):
    """All of a row close to a half: where a division is not exactly this one, some become the other integer."""
    chance = np.random.default_rng(width)
    largest = chance.uniform(0.5, 2, (300, 1)).astype(np.float32)
    x = ((chance.integers(-126, 126, (300, width)) + 0.5) * largest / 127).astype(np.float32)
    x = np.nextafter(x, chance.choice([-9, 9], x.shape).astype(np.float32))
    x[:, 0] = largest[:, 0]
    int8, found = np.empty(x.shape, np.int8), np.empty(300, np.float32)
    kernels.quantise(x, int8, found)
    expected = np.rint(x * (np.float32(127) / largest)).astype(np.int8)
    assert np.array_equal(int8, expected)
    panels = gemm.int8_panels(np.eye(width, dtype=np.int8))
    if panels is not None:
        y, ones = np.empty(x.shape, np.float32), gemm.padded(np.ones(width, np.float32))
        gemm.multiply_int8(x, panels, ones, 0 * ones, SET, y)
        assert np.array_equal(y, expected * largest)


@pytest.mark.parametrize("width", [1, 5, 32, 33, 96])
@pytest.mark.parametrize("function", [torch.nn.functional.softplus, lambda y: y.exp().log1p().tanh()])
def test_activations_row_by_row(function, width, threads):
    y = torch.from_numpy(random(700, width))
    together = row_by_row(function, y, width)
    torch.testing.assert_close(together, function(y))
    for row in range(0, 700, 13):
        assert torch.equal(row_by_row(function, y[row : row + 1].clone(), width)[0], together[row])
