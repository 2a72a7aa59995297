"""The Evolved Transformer's cells, step by step."""

import pytest
import torch
import torch.nn.functional as F

import sixfold
from sixfold.core.place import Place
from sixfold.modifications.evolved import (
    Convolution,
    DecoderBranches,
    DoubleAttention,
    EncoderBranches,
    SeparableConvolution,
    half_as_wide,
)
from sixfold.modifications.evolved_study import as_wide
from sixfold.spec.spec import Spec
from sixfold.transformer import Attention
from tests.support.small import assert_close, random_ids, seeded, small_model, small_sizes
from tests.support.stage import call_for, padded_call


def placed(causal):
    return Place("only", layers=2, causal=causal, layer=0)


def random_x(rows=2, length=6, width=16, seed=1):
    return torch.randn(rows, length, width, dtype=torch.float64, generator=seeded(seed))


def made(part, seed=0):
    """In float64, with every parameter random."""
    for i, p in enumerate(part.to(torch.float64).parameters()):
        torch.nn.init.normal_(p, std=0.3, generator=seeded(seed + i))
    return part


@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("kind", [Convolution, SeparableConvolution])
@torch.no_grad()
def test_a_convolution_is_the_sum_over_its_window(kind, causal):
    part, x = made(kind(placed(causal), 3, 16, 8)), random_x()
    y = part(x, call_for(x, causal))
    for t in range(6):
        expected = part.bias if kind is Convolution else part.pointwise.bias
        for j in range(3):
            s = t + j - (2 if causal else 1)
            if 0 <= s < 6 and kind is Convolution:
                expected = expected + x[:, s] @ part.weight[:, :, j].T
            elif 0 <= s < 6:
                expected = expected + (x[:, s] * part.depthwise[:, j]) @ part.pointwise.weight.T
        assert_close(y[:, t], expected.expand(2, -1), within=1e-12)


@pytest.mark.parametrize("kind", [EncoderBranches, DecoderBranches])
@torch.no_grad()
def test_branches_are_filled_up_with_zeros(kind):
    part, x = made(kind(Spec(sizes=small_sizes()), placed(False))), random_x()
    entered = []
    part.norm.register_forward_pre_hook(lambda norm, inputs: entered.append(inputs[0]))
    for p in part.left.parameters():
        p.zero_()
    y = part(x, call_for(x, False))
    assert (entered[0][..., :8] != 0).any()
    assert (entered[0][..., 8:] == 0).all()  # the right branch has D/2 channels
    if kind is EncoderBranches:
        assert (y[..., 8:] == 0).all()


@pytest.mark.parametrize("kind", [EncoderBranches, DecoderBranches])
@pytest.mark.parametrize("real", [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
@torch.no_grad()
def test_no_convolution_reads_padding(kind, real):
    """Also not what the norm between two of them makes of it."""
    for causal in (False, True):
        part, x, mask = made(kind(Spec(sizes=small_sizes()), placed(causal))), random_x(1), torch.tensor([real]).bool()
        alone = x[mask][None]
        expected = part(alone, call_for(alone, causal))[0]
        assert_close(part(x, padded_call(mask, causal))[mask], expected, within=1e-12)


def test_the_cell_of_a_decoder_sees_no_later_token():
    model = small_model(modifications=("evolved",), decoder_layers=1)
    cell, memory = model.decoder.layers[0], model.encode(random_ids(1, 3, seeded(2)))

    def outputs(x):
        return cell(x, call_for(x, True, memory=memory)).square().sum((0, 2))

    jacobian = torch.autograd.functional.jacobian(outputs, random_x(1, 14))[:, 0].abs().amax(-1)  # (L, L)
    assert (jacobian.triu(1) == 0).all()
    assert (jacobian.diagonal() > 0).all()


@pytest.mark.parametrize(("each", "width"), [(half_as_wide, 4), (as_wide, 8)])
@torch.no_grad()
def test_two_attentions_of_two_heads_are_one_of_four(each, width):
    spec, place = Spec(sizes=small_sizes()), placed(True)
    part = made(DoubleAttention(spec, place, each(spec)))
    part.cross.forward = lambda x, call: 0  # beside the point
    wide = Attention(Spec(sizes=small_sizes(heads=4, d_head=width)), place).to(torch.float64)
    halves = [half.qkv.weight.unflatten(0, (3, -1)) for half in (part.one, part.other)]
    wide.qkv.weight.copy_(torch.cat(halves, 1).flatten(0, 1))
    wide.output.weight.copy_(torch.cat([part.one.output.weight, part.other.output.weight], 1))
    x = random_x()
    assert_close(part(x, call_for(x, True)), wide(x, call_for(x, True)), within=1e-12)


def test_the_feed_forward_of_the_decoder_has_swish():
    model = small_model(modifications=("evolved",))
    assert model.decoder.layers[0].feed_forward.activation is F.silu
    assert model.encoder.layers[0].feed_forward.activation(torch.tensor([-3.0])) == 0


@pytest.mark.parametrize("position", ["rotary", "t5_bias", "shaw"])
@pytest.mark.parametrize("form", ["evolved", "evolved_study"])
@torch.no_grad()
def test_positions_reach_all_attentions_of_a_cell(position, form):
    model = small_model(modifications=(position, form))
    source, ids = random_ids(2, 5, seeded(3)), random_ids(2, 14, seeded(4))
    whole, cache = model.decode(ids, model.encode(source)), sixfold.Cache(model.encode(source))
    steps = [model.decode(ids[:, i : i + 1], cache=cache) for i in range(14)]
    assert_close(torch.cat(steps, 1), whole)


def test_odd_heads_cannot_be_halved():
    with pytest.raises(ValueError, match="d_head must be even, got 5"):
        small_model(modifications=("evolved",), d_head=5)
    small_model(modifications=("evolved_study",), d_head=5)


@pytest.mark.parametrize("kind", ["encoder_decoder", "encoder_only"])
def test_what_no_part_of_a_cell_reads_is_refused(kind):
    with pytest.raises(ValueError, match="'gelu' fills the slot 'activation', which nothing reads"):
        small_model(kind, ("evolved", "geglu", "gelu"))
    small_model(kind, ("evolved", "gelu"))
