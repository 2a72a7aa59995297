"""Cross-attention with heads of its own."""

import pytest
import torch

import sixfold
from tests.support.small import assert_close, random_ids, seeded, small_model, small_sizes


def test_the_study_had_two_shapes_of_heads_in_one_model():
    sizes = sixfold.Sizes(vocab=32128, d_model=768, d_ff=3072, heads=8, d_head=128)
    model = sixfold.build(sizes, ["cross_heads:heads=12,d_head=64"], device="meta")
    layer = model.decoder.layers[0]
    assert (layer.attention.heads, layer.attention.qkv.out_features) == (8, 3 * 1024)
    assert (layer.cross.heads, layer.cross.kv.out_features) == (12, 2 * 768)


@torch.no_grad()
def test_as_many_heads_as_before_are_the_plain_model():
    plain, model = small_model(), small_model(modifications=("cross_heads:heads=2,d_head=8",))
    source, ids = random_ids(2, 5, seeded(1)), random_ids(2, 4, seeded(2))
    assert_close(model.decode(ids, model.encode(source)), plain.decode(ids, plain.encode(source)), within=0)


@torch.no_grad()
def test_one_head_is_one_softmax():
    model, ids = small_model(modifications=("cross_heads:heads=1,d_head=16",)), random_ids(2, 4, seeded(3))
    tap = sixfold.Tap("decoder.*.cross")
    model.decode(ids, model.encode(ids), tap=tap)
    assert tap["decoder.1.cross"].shape == (2, 1, 4, 4)


@pytest.mark.parametrize("options", ["heads=0", "d_head=0"])
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match="at least 1"):
        sixfold.build(small_sizes(), [f"cross_heads:{options}"])
