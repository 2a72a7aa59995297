"""The fused step says what the model says, and the same in any company."""

import numpy as np
import pytest
import torch

from sixfold import BOS, EOS
from sixfold.decoding.cpu import step as fused
from sixfold.decoding.cpu.int8 import quantised
from sixfold.decoding.cpu.step import FusedStep, make_step, unknown_part
from sixfold.decoding.engine import Job, search
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.step import ModelStep, padded
from tests.support.architectures import encoder_decoders
from tests.support.company import EVERYBODY, METHODS, WISHES, assert_same, found
from tests.support.covering import covering
from tests.support.small import applies, moved_model, small_model

SOURCES = [[5, 9, 7, EOS], [8, EOS]]


def known(wishes):
    return unknown_part(small_model(modifications=wishes, dtype=torch.float32)) is None


KNOWN = [wishes for wishes in WISHES if applies("encoder_decoder", *wishes) and known(wishes)]


def model_of(wishes=(), **sizes):
    return moved_model(modifications=wishes, dtype=torch.float32, **sizes)


def test_many_are_known_and_others_named():
    assert len(KNOWN) > 20
    assert ("rotary",) in KNOWN
    assert unknown_part(small_model(dtype=torch.float32)) is None
    assert unknown_part(small_model()) == "float64 on cpu"
    assert unknown_part(small_model("decoder_only", dtype=torch.float32)) == "a model of kind decoder_only"
    assert unknown_part(small_model(modifications=("shaw",), dtype=torch.float32)) == "Shaw"
    assert type(make_step(small_model(dtype=torch.float32), "decoder.1.cross")) is ModelStep
    with pytest.raises(ValueError, match="does not know Shaw"):
        FusedStep(small_model(modifications=("shaw",), dtype=torch.float32))


@covering(encoder_decoders(KNOWN))
@torch.inference_mode()
def test_a_step_is_the_models(modifications):
    model = model_of(modifications)
    step, memory = FusedStep(model), model.encode(padded(SOURCES, torch.device("cpu")))
    state, ids = step.begin(SOURCES), torch.tensor([[BOS, 7, 12], [BOS, 30, 6]])
    for t in range(3):
        scores, log_z, state, *_ = step(ids[:, t : t + 1], state)
        expected = model.log_probs(model.decode(ids[:, : t + 1], memory)[:, -1])
        torch.testing.assert_close(scores - log_z[:, None], expected, rtol=0, atol=2e-5)


@torch.inference_mode()
def test_several_tokens_at_once_and_padding_at_the_left():
    model = model_of()
    step, memory = FusedStep(model), model.encode(padded(SOURCES, torch.device("cpu")))
    prompts = [[BOS, 7, 12, 9], [BOS, 30]]
    scores, log_z, state, *_ = step(padded(prompts, step.device, "left"), step.begin(SOURCES))
    for row, prompt in enumerate(prompts):
        expected = model.log_probs(model.decode(torch.tensor([prompt]), _only(memory, row))[:, -1])[0]
        torch.testing.assert_close(scores[row] - log_z[row], expected, rtol=0, atol=2e-5)
    assert state.count.tolist() == [4, 2]


def _only(memory, row):
    length = len(SOURCES[row])
    return memory._replace(states=tuple(s[row : row + 1, :length] for s in memory.states), real=None)


@covering(encoder_decoders(KNOWN), method=METHODS)
def test_the_same_as_by_the_layers_in_any_company(modifications, method):
    model, few = model_of(modifications, vocab=12), EVERYBODY[::9]
    step, backwards, budget = FusedStep(model), EVERYBODY[::-1], 160 * method.width
    whole = found(step, method, EVERYBODY, "encoder_decoder")
    assert_same(whole, found(ModelStep(model), method, EVERYBODY, "encoder_decoder"), EVERYBODY, 1e-4)
    assert_same(whole, found(step, method, few, "encoder_decoder", 1), few, 1e-4)  # each alone
    assert_same(whole, found(step, method, backwards, "encoder_decoder", budget), EVERYBODY, 1e-4)


@pytest.mark.parametrize("method", [Greedy(), Beam(3)], ids=["greedy", "beam"])
@torch.no_grad()
def test_long_sources_are_read_as_short_ones_and_nobody_notices(method, monkeypatch):
    model, lengths = quantised(model_of(vocab=12)), [3, 40, 2, 25, 30, 1]
    jobs = [Job(source=[*([5, 7, 9] * n)[:n], EOS], limit=6, tag=n) for n in lengths]
    monkeypatch.setattr(fused, "LONG", 20)
    together = {job.tag: texts for job, texts in search(FusedStep(model), jobs, method)}
    alone = {job.tag: texts for job in jobs for _, texts in search(FusedStep(model), [job], method)}
    assert together == alone
    exact = model_of(vocab=12)
    for job in jobs:
        read = []
        for long in (1, 100):
            monkeypatch.setattr(fused, "LONG", long)
            read.append(FusedStep(exact).begin([job.source]).memory[0].states.array)
        np.testing.assert_allclose(*read, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_a_model_that_changes_is_read_anew():
    model = model_of()
    for _ in range(2):
        step, state = FusedStep(model), FusedStep(model).begin(SOURCES)
        scores, log_z, *_ = step(torch.full((2, 1), BOS), state)
        memory = model.encode(padded(SOURCES, step.device))
        expected = model.log_probs(model.decode(torch.full((2, 1), BOS), memory)[:, -1])
        torch.testing.assert_close(scores - log_z[:, None], expected, rtol=0, atol=2e-5)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1.3


def test_learned_positions_end():
    model = model_of(("learned_positions:length=4",))
    step = FusedStep(model)
    state = step.begin([[5, EOS]])
    for _ in range(4):
        state = step(torch.full((1, 1), 7), state).state
    with pytest.raises(ValueError, match="5 positions, but this model has learned only 4"):
        step(torch.full((1, 1), 7), state)


@torch.no_grad()
def test_in_8_bits_it_is_close_to_the_layers_in_8_bits():
    """Keys and values are rounded, too: not the same, but no further off than the model's own rounding."""
    model = model_of(d_model=64, d_ff=128)
    steps = ModelStep(model), ModelStep(quantised(model)), FusedStep(quantised(model))
    said = []
    for step in steps:
        state = step.begin(SOURCES)
        for word in (BOS, 7, 12, 20):
            scores, log_z, state, *_ = step(torch.full((2, 1), word), state)
        said.append(scores - log_z[:, None])
    off, off_too = ((each - said[0]).abs().mean() for each in said[1:])
    assert 0 < off_too < 1.5 * off


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("decoder.layers.1.attention.qkv", float("nan")),
        ("decoder.layers.0.cross.kv", float("inf")),
        ("decoder.layers.1.feed_forward.inner", float("nan")),
        ("encoder.layers.0.attention.qkv", float("nan")),
        ("", float("nan")),
        ("", float("inf")),
    ],
)
def test_what_is_no_number_is_not_hidden(name, number, precision):
    model = model_of()
    with torch.no_grad():
        (model.get_submodule(name) if name else model.roles["target"]).weight[9, 3] = number
    job = Job(source=SOURCES[0], limit=5)
    with pytest.raises(ValueError, match="the model.s log-probabilities are NaN"), torch.no_grad():
        list(search(FusedStep(quantised(model) if precision == "int8" else model), [job], Greedy()))


def test_a_step_has_the_weights_of_when_it_was_made():
    model = model_of()
    for change in (
        lambda p: setattr(p, "data", p.data * 1.2),
        lambda p: p.data.mul_(1.2),
        lambda p: p.detach().numpy().__imul__(1.2),
    ):
        before = [FusedStep(each)(torch.full((2, 1), BOS), FusedStep(each).begin(SOURCES)) for each in _both(model)]
        for parameter in model.parameters():
            change(parameter)
        for each, old in zip(_both(model), before, strict=True):
            scores, log_z, *_ = FusedStep(each)(torch.full((2, 1), BOS), FusedStep(each).begin(SOURCES))
            with torch.no_grad():
                memory = model.encode(padded(SOURCES, torch.device("cpu")))
                expected = model.log_probs(model.decode(torch.full((2, 1), BOS), memory)[:, -1])
            off = (scores - log_z[:, None] - expected).abs().mean()
            assert off < 0.2 * (old.scores - old.log_z[:, None] - expected).abs().mean()


def _both(model):
    return model, quantised(model)


@torch.no_grad()
def test_rows_of_padding_beside_one_token():
    model = model_of()
    step = FusedStep(model)
    found = step(torch.tensor([[0], [BOS]]), step.begin(SOURCES))
    assert found.scores.shape[0] == len(found.log_z) == 2
    alone = step(torch.tensor([[BOS]]), step.begin(SOURCES[1:]))
    torch.testing.assert_close(found.scores[1] - found.log_z[1], alone.scores[0] - alone.log_z[0])


def test_what_is_not_as_it_seems_is_left_to_the_layers():
    hooked, wrapped = model_of(), model_of()
    hooked.decoder.layers[0].cross.q.register_forward_hook(lambda part, given, y: 2 * y)
    wrapped.decoder.layers[0].attention.output = torch.nn.Sequential(wrapped.decoder.layers[0].attention.output)
    assert [unknown_part(hooked), unknown_part(wrapped)] == ["a hook", "another kind of linear map"]


def test_words_that_are_not_there():
    step = FusedStep(model_of())
    for source in ([5, 5000, EOS], [-1, EOS]):
        with pytest.raises(ValueError, match="but the vocabulary has 50 words"):
            step.begin([source])
