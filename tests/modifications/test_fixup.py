"""Fixup."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from sixfold.models.encoder_decoder import EncoderDecoder
from sixfold.modifications.fixup import FixupEnd, FixupResidual, fixup
from sixfold.spec.spec import Spec
from tests.support.small import assert_close, random_ids, seeded, small_model, small_sizes


@torch.no_grad()
def test_at_first_every_stack_is_the_identity():
    model, ids = small_model(modifications=("fixup",)), random_ids(2, 5, seeded(1))
    seen = []
    for entrance in (model.encoder_input, model.decoder_input):
        entrance.register_forward_hook(lambda part, given, got: seen.append(got[0]))
    memory = model.encode(ids)
    assert torch.equal(model.decode(ids, memory), seen[1])
    assert torch.equal(memory.states[-1], seen[0])


WIDE = {"d_model": 64, "d_ff": 256, "heads": 4, "encoder_layers": 12, "decoder_layers": 12}


@pytest.mark.parametrize("sharing", [(), ("block_sharing",)], ids=["", "shared"])
def test_how_large_the_matrices_begin(sharing):
    """12 · 2 + 12 · 3 = 60 branches: 60^(−1/6) = 0.5054 in attention and 60^(−1/2) = 0.1291 in the feed-forward,
    times He's √(2/64) = 0.1768; cutting a normal at two deviations leaves 0.8796 of its deviation."""
    model = small_model(modifications=("fixup", *sharing), **WIDE)
    layer = model.decoder.layer if sharing else model.decoder.layers[3]
    attention, cross, ffn = layer.attention, layer.cross, layer.feed_forward
    for matrix, factor in ((attention.qkv, 0.5054), (cross.q, 0.5054), (cross.kv, 0.5054), (ffn.inner, 0.1291)):
        assert matrix.weight.std().item() == pytest.approx(0.1768 * 0.8796 * factor, rel=0.04)
    assert all((matrix.weight == 0).all() for matrix in (attention.output, cross.output, ffn.outer))


def test_in_the_study_cross_attention_begins_as_ever():
    layer = small_model(modifications=("fixup_study",), **WIDE).decoder.layers[3]
    for matrix in (layer.cross.q, layer.cross.kv, layer.cross.output):
        assert matrix.weight.std().item() == pytest.approx(64**-0.5, rel=0.04)
    assert (layer.attention.output.weight == 0).all()


def test_one_step_changes_the_output_as_much_at_any_depth():
    """A step of gradient descent on the feed-forwards: 16 times the layers, the same change."""

    def change(layers):
        model = small_model("encoder_only", ("fixup",), encoder_layers=layers, d_ff=512)
        ids = random_ids(2, 5, seeded(2))
        before = model.encode(ids)
        (before * torch.randn(before.shape, dtype=before.dtype, generator=seeded(3))).sum().backward()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "feed_forward" in name and "around" not in name:
                    p -= 1e-4 * p.grad
            return (model.encode(ids) - before).norm().item()

    assert change(64) / change(4) == pytest.approx(1, abs=0.1)


@torch.no_grad()
def test_the_formulas_with_numbers_that_say_something():
    layer = small_model("encoder_only", ("fixup", "gelu")).stack.layers[0]
    around, ffn = layer.around_feed_forward, layer.feed_forward
    x = torch.randn(2, 3, 16, dtype=torch.float64, generator=seeded(4))
    ffn.outer.weight.normal_(generator=seeded(5))
    around.scale.fill_(0.5), around.shift.fill_(-0.3), ffn.shift.fill_(0.2)
    inner = torch.nn.functional.gelu((x - 0.3) @ ffn.inner.weight.T) + 0.2
    assert_close(around(x, ffn, None), x + 0.5 * inner @ ffn.outer.weight.T, within=1e-12)


@torch.no_grad()
def test_the_ends():
    model = small_model(modifications=("fixup",))
    x = torch.ones(1, 1, 16, dtype=torch.float64)
    for end in (model.encoder.final, model.decoder.final):
        end.shift.fill_(0.5)
    model.encoder.final.scale.fill_(3)
    assert (model.encoder.final(x) == 4.5).all()
    assert (model.decoder.final(x) == 1.5).all()
    assert small_model("decoder_only", ("fixup",)).stack.final.scale is None
    assert small_model("encoder_only", ("fixup",)).stack.final.scale is not None


def test_there_are_single_numbers_but_no_norms_and_no_biases():
    model = small_model(modifications=("fixup",))
    vectors = {n: p for n, p in model.named_parameters() if p.dim() < 2}
    assert all(p.shape == (1,) for p in vectors.values())
    assert len(vectors) == 2 * 10 + 4 + 3  # two for each branch, one for each feed-forward, three at the ends
    kinds = [type(m) for m in model.modules()]
    assert (kinds.count(FixupResidual), kinds.count(FixupEnd), kinds.count(nn.LayerNorm)) == (10, 2, 0)
    decaying = {id(p) for group in model.groups() if group.decay for p in group.parameters}
    assert not any(id(p) in decaying for p in vectors.values())


def test_a_branch_it_cannot_initialise_is_refused():
    class Mean(nn.Module):
        def __init__(self, spec, place):
            super().__init__()

    spec = fixup(replace(Spec(sizes=small_sizes()), attention=Mean))
    with pytest.raises(ValueError, match="recognises 6 of 10"):
        EncoderDecoder(spec)
    with pytest.raises(ValueError, match="fixup can't initialise every branch"):
        small_model(modifications=("fixup", "weighted"))  # which keeps attention's last matrix to itself
