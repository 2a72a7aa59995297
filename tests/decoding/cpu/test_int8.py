"""Linear maps in 8 bits: how exact they are, and that nobody depends on their neighbours."""

import os
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn

from sixfold.config.schema import Decoding
from sixfold.decoding.cpu import int8
from sixfold.decoding.cpu.step import FusedStep, make_step
from sixfold.decoding.owned_models import OwnedModels, in_8_bits
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.session import DecodingSession
from sixfold.decoding.step import ModelStep
from sixfold.text.tokenizer import Tokenizers
from sixfold.text.vocabulary import train_tokenizer
from tests.support.company import EVERYBODY, assert_same, found, writers
from tests.support.covering import covering
from tests.support.small import moved_model, seeded

HERE = EVERYBODY[::9]


def made(kind="encoder_decoder", wishes=(), dtype=torch.float32, **sizes):
    return moved_model(kind, wishes, vocab=12, dtype=dtype, **sizes)


def test_a_map_of_numbers_that_8_bits_can_hold_is_exact():
    weight = torch.tensor([[127.0, -3.0, 0.0], [2.0, 4.0, -254.0]])
    x = torch.tensor([[127.0, 1.0, -7.0], [0.5, -63.5, 1.0], [0.0, 0.0, 0.0]])
    assert torch.equal(int8.Matrix(weight)(x, torch.tensor([1.0, 2.0])), x @ weight.T + torch.tensor([1.0, 2.0]))


def test_a_map_is_no_further_off_than_its_roundings():
    weight, x = torch.randn(40, 96, generator=seeded(1)), torch.randn(7, 96, generator=seeded(2)) * 30
    a, s = x.abs().amax(1, keepdim=True) / 127, weight.abs().amax(1) / 127
    most = a / 2 * weight.abs().sum(1) + s / 2 * x.abs().sum(1, keepdim=True) + 96 * a * s / 4
    error = (int8.Matrix(weight)(x) - x @ weight.T).abs()
    assert (error <= most).all()
    assert error.max() > 0


def test_a_row_is_the_same_alone_and_in_any_company():
    matrix, x = int8.Matrix(torch.randn(24, 32, generator=seeded(3))), torch.randn(9, 32, generator=seeded(4))
    x[0] *= 1e6
    together = matrix(x)
    assert all(torch.equal(matrix(row[None])[0], y) for row, y in zip(x, together, strict=True))


def test_all_but_the_maps_is_in_double_precision_and_the_model_itself_is_not_changed():
    model = made()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    small = int8.quantised(model)
    norm, exact = (each.decoder.layers[0].around_cross.norm.weight for each in (small, model))
    assert norm.dtype == torch.float64
    assert torch.equal(norm, exact.double())
    assert not any(type(part) is nn.Linear for part in small.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()), "itself"
    assert all(tensor.dtype == torch.float32 for tensor in model.state_dict().values())
    assert any(type(part) is nn.Linear for part in model.modules())


def test_many_rows_are_multiplied_by_another_engine_to_the_same_bits():
    matrix, x = int8.Matrix(torch.randn(300, 48, generator=seeded(3))), torch.randn(500, 48, generator=seeded(4))
    assert len(x) * 300 > int8._MANY > 100 * 300
    assert torch.equal(matrix(x), torch.cat([matrix(part) for part in x.split(100)]))
    bias = torch.randn(300, generator=seeded(5))
    assert torch.equal(matrix(x, bias), torch.cat([matrix(part, bias) for part in x.split(100)]))


METHODS = {"greedy": Greedy(), "beam": Beam(3, n_best=3)}


@pytest.mark.parametrize("d_head", [8, 32])
@pytest.mark.parametrize("wishes", [(), ("rotary",), ("post_norm",), ("learned_positions",)])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_sentence_does_not_depend_on_its_neighbours_at_all(wishes, method, d_head):
    step = make_step(int8.quantised(made(wishes=wishes, d_head=d_head)))
    together = found(step, method, EVERYBODY, "encoder_decoder")
    assert len({text.tokens for number in HERE for text in together[number]}) > 1
    for number in HERE:
        assert_same(found(step, method, [number], "encoder_decoder"), together, [number], within=1e-12)


def test_a_map_of_one_input_stays_as_it_is():
    """Its product in 8 bits would be wrong; nobody needs it."""
    model = made(d_ff=1)
    small = int8.quantised(model)
    inner = small.decoder.layers[0].feed_forward
    assert (type(inner.inner), type(inner.outer)) == (int8.Int8Linear, nn.Linear)
    exact, fused, layers = (
        found(step, Greedy(), HERE, "encoder_decoder")
        for step in (ModelStep(model), FusedStep(small), ModelStep(small))
    )
    for number in HERE:
        first = [each[number][0].log_probs[0] for each in (exact, fused, layers)]
        assert first == pytest.approx([first[0]] * 3, abs=0.5)


@covering(writers(), every="kind", method=METHODS)
def test_nor_does_it_in_any_model(kind, modifications, method):
    """Whatever else of it depends on the order of sums: that is gone when 8 bits are left."""
    step = make_step(int8.quantised(made(kind, modifications)))
    together = found(step, method, EVERYBODY, kind)
    for number in HERE:
        assert_same(found(step, method, [number], kind), together, [number])


@covering(writers())
def test_every_model_that_writes_does_so_in_8_bits(kind, modifications):
    model = made(kind, modifications)
    exact, rough = (found(make_step(each), Greedy(), HERE, kind) for each in (model, int8.quantised(model)))
    close = [abs(exact[n][0].log_probs[0] - rough[n][0].log_probs[0]) for n in HERE]
    assert sorted(close)[len(close) // 2] < 0.7, "the first words have quite other probabilities"


def test_the_configuration_asks_for_it():
    model, letters = made(), train_tokenizer("symbols", ["a b c d e f"])
    session = DecodingSession(OwnedModels([model]), Tokenizers(letters, letters), Decoding(precision="int8"))
    assert isinstance(session.step, FusedStep)
    assert all(map(int8.is_quantised, session.models))


def test_auto_is_int8_on_a_cpu():
    model = made()
    assert not in_8_bits(model, Decoding())
    assert in_8_bits(model, Decoding(precision="auto"))
    assert not in_8_bits(model.to("meta"), Decoding(precision="auto"))


PROGRAM = """
import torch
from sixfold.decoding.cpu.int8 import Matrix, largest_weight
x, weight = torch.full((40, 96), -5.0), torch.full((24, 96), 3.0)
print(largest_weight(), float((Matrix(weight)(x) - x @ weight.T).abs().max()) < 1e-2)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="it names instructions of another machine")
def test_where_products_of_8_bits_overflow_weights_have_7():
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
    )
    assert answer.stdout.split() in (["63", "True"], ["127", "True"]), answer.stderr
    assert int8.largest_weight() in (63, 127)
