"""How many parameters a model has, against sums done by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import sixfold


def count(model) -> int:
    return sum(p.numel() for p in model.parameters())


def attention(D: int) -> int:
    return 4 * D * D  # W_Q, W_K, W_V, W_O, no biases


def feed_forward(D: int, F: int) -> int:
    return D * F + F + F * D + D  # W₁, b₁, W₂, b₂


def norm(D: int) -> int:
    return 2 * D  # gain and bias


def transformer(D: int, F: int, layers: int, V: int, final_norms: int) -> int:
    encoder_layer = attention(D) + feed_forward(D, F) + 2 * norm(D)
    decoder_layer = 2 * attention(D) + feed_forward(D, F) + 3 * norm(D)
    return V * D + layers * (encoder_layer + decoder_layer) + final_norms * norm(D)


def test_transformer_base():
    """6+6 layers, D 512, F 2048: 37,000 · 512 + 6 · 3,150,336 + 6 · 4,199,936."""
    model = sixfold.build(sixfold.Sizes(vocab=37_000), ["post_norm"], device="meta")
    assert count(model.encoder.layers[0]) == 3_150_336
    assert count(model.decoder.layers[0]) == 4_199_936
    assert count(model) == transformer(D=512, F=2048, layers=6, V=37_000, final_norms=0) == 63_045_632


def test_transformer_big():
    sizes = sixfold.Sizes(d_model=1024, d_ff=4096, heads=16, vocab=37_000)
    model = sixfold.build(sizes, ["post_norm"], device="meta")
    assert count(model) == transformer(D=1024, F=4096, layers=6, V=37_000, final_norms=0) == 214_171_648


def test_vanilla_of_the_study():
    """12+12 layers, D 768, F 3072, pre-norm, a position bias of 32 buckets · 12 heads for each stack."""
    sizes = sixfold.Sizes(d_model=768, d_ff=3072, heads=12, encoder_layers=12, decoder_layers=12, vocab=32_128)
    model = sixfold.build(sizes, ["t5_bias"], device="meta")
    by_hand = transformer(D=768, F=3072, layers=12, V=32_128, final_norms=2) + 2 * 32 * 12
    assert count(model) == by_hand == 223_043_328


SMALL = {"d_model": 16, "d_ff": 20, "heads": 4, "encoder_layers": 2, "decoder_layers": 3}


@pytest.mark.parametrize(
    ("modification", "more"),
    [
        ("post_norm", -2 * norm(16)),
        ("rotary", 0),
        ("no_positions", 0),
        ("learned_positions:length=7", 2 * 7 * 16),
        ("t5_bias:buckets=8", 2 * 8 * 4),
        ("t5_bias:buckets=8,per_layer=true", 5 * 8 * 4),
        ("shaw:distance=3", 5 * 2 * 7 * 4),
        ("shaw:distance=3,per_head=true", 5 * 2 * 7 * 4 * 4),
    ],
)
def test_what_a_modification_adds_is_what_its_page_says(modification, more):
    sizes = sixfold.Sizes(**SMALL, vocab=11)
    plain = sixfold.build(sizes, device="meta")
    assert count(sixfold.build(sizes, [modification], device="meta")) == count(plain) + more


def test_models_of_one_stack():
    sizes = sixfold.Sizes(**SMALL, vocab=11)
    layer = attention(16) + feed_forward(16, 20) + 2 * norm(16)
    assert count(sixfold.build(sizes, model="encoder_only", device="meta")) == 11 * 16 + 2 * layer + norm(16)
    assert count(sixfold.build(sizes, model="decoder_only", device="meta")) == 11 * 16 + 3 * layer + norm(16)
    classes = sixfold.Sizes(**SMALL, vocab=11, classes=5)
    with_classes = count(sixfold.build(classes, model="encoder_only", device="meta"))
    assert with_classes == 11 * 16 + 2 * layer + norm(16) + 16 * 5 + 5


def test_one_vocabulary_has_one_table():
    model = sixfold.build(sixfold.Sizes(**SMALL, vocab=11), seed=1)
    assert len(model.tables) == 1
    assert model.roles["source"] is model.roles["target"] is model.roles["output"] is model.tables[0]


def test_separate_vocabularies_share_the_target_side_only():
    joint = sixfold.build(sixfold.Sizes(**SMALL, vocab=11), device="meta")
    model = sixfold.build(sixfold.Sizes(**SMALL, source_vocab=13, target_vocab=11), seed=1)
    assert count(model) == count(joint) + 13 * 16
    assert sorted(table.weight.shape[0] for table in model.tables) == [11, 13]
    assert model.roles["source"].weight.shape == (13, 16)
    assert model.roles["target"] is model.roles["output"]
    assert model.roles["target"] is not model.roles["source"]


def resident() -> int:
    """Bytes of memory that this process holds."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says so cheaply how much memory is held")
def test_a_billion_parameters_take_no_memory_on_meta():
    sizes = sixfold.Sizes(d_model=2048, d_ff=8192, heads=16, encoder_layers=10, decoder_layers=10, vocab=32_000)
    before = resident()
    model = sixfold.build(sizes, device="meta")
    assert resident() - before < 200e6
    assert count(model) == transformer(D=2048, F=8192, layers=10, V=32_000, final_norms=2) > 1e9
    assert all(p.is_meta for p in model.parameters())
