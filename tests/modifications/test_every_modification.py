"""What every registered modification promises besides test_contract.py. Adding a file adds its tests."""

import itertools
import math

import pytest
import torch

import sixfold
from sixfold import BOS, Batch
from sixfold.spec import registry
from sixfold.verify.contract import training
from sixfold.verify.contract.subject import Subject
from tests.support.architectures import encoder_decoders
from tests.support.covering import covering
from tests.support.small import (
    MODIFICATIONS,
    VOCAB,
    combinations,
    not_exported,
    packed,
    random_ids,
    refusal,
    seeded,
    small_model,
    small_sizes,
)

ALONE = [(wish,) for wish in MODIFICATIONS]
every = pytest.mark.parametrize("wish", MODIFICATIONS, ids=str)
every_and_several = covering([*encoder_decoders(ALONE), *encoder_decoders(combinations(), one_in=3)])


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def batch(rows=4, length=6, words=VOCAB, seed=0, zipf=False):
    """Words (all but the three that control), each as likely as the others or, by Zipf's law, as 1 / rank."""
    chance = 1 / torch.arange(1.0, words - 2) if zipf else torch.ones(words - 3)
    source, targets = (
        3 + torch.multinomial(chance, rows * length, replacement=True, generator=seeded(seed + i)).view(rows, length)
        for i in range(2)
    )
    begin = torch.full((rows, 1), BOS)
    return Batch(source=source, inputs=torch.cat([begin, targets[:, :-1]], 1), targets=targets)


@every
def test_it_adds_as_many_parameters_as_its_file_says(wish):
    chosen = registry.choose(wish)
    adds = registry.find(chosen.name).adds
    assert adds is not None, "the file must say adds=…"
    for changes in ({}, {"d_model": 24, "d_ff": 40, "heads": 3, "d_head": 6, "encoder_layers": 4, "decoder_layers": 2}):
        sizes = small_sizes(**changes)
        plain, modified = (sixfold.build(sizes, wishes, device="meta") for wishes in ((), (wish,)))
        assert parameters(modified) - parameters(plain) == adds(sizes, **chosen.options)


@torch.no_grad()
def difference(with_it, without):
    """How much a modification changes the loss, where both have the same weights as far as they have the same names."""
    plain, modified = models = small_model(modifications=without), small_model(modifications=with_it)
    for tensor in itertools.chain(*(model.state_dict().values() for model in models)):
        if tensor.abs().max() == tensor.abs().min():  # a gain of 0 or 1, a bias of 0: give it something to say
            tensor += 0.3 * torch.randn(tensor.shape, dtype=tensor.dtype, generator=seeded(3))
    for name, tensor in modified.state_dict().items():
        same = plain.state_dict().get(name)
        if same is not None and same.shape == tensor.shape:
            tensor.copy_(same)
    data = batch()
    return (modified(data).sum - plain(data).sum).abs()


@every
def test_it_computes_something_else_than_the_plain_model(wish):
    assert difference((wish,), ()) > 1e-6


@covering(encoder_decoders(combinations()))
def test_each_of_several_acts(modifications):
    """Without any one of them, something else is computed: none is lost in what another builds."""
    for wish in modifications:
        assert difference(modifications, tuple(other for other in modifications if other != wish)) > 1e-6, wish


@every_and_several
def test_the_first_loss_is_near_that_of_guessing(modifications):
    """Words are drawn by Zipf's law, as text is: adaptive tables are made for that."""
    words = 2000
    model = small_model(modifications=modifications, dtype=torch.float32, d_model=32, d_ff=64, heads=4, vocab=words)
    with torch.no_grad():
        losses = model(batch(rows=16, length=16, words=words, zipf=True))
    near = (
        0.2 if "fixup_study" in modifications else 0.15
    )  # its cross-attention begins as ever, and no norm holds it back
    assert losses.sum.item() / losses.tokens.item() == pytest.approx(math.log(words), rel=near)


@every_and_several
def test_every_parameter_learns(modifications):
    training.every_parameter_learns(Subject("encoder_decoder", modifications))


@every_and_several
def test_it_learns_to_copy(modifications):
    training.copying(Subject("encoder_decoder", modifications))


class Pass(torch.nn.Module):
    """Source and target ids → log-probabilities."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, source, target):
        return self.model.log_probs(self.model.decode(target, self.model.encode(source)))


def expressible(wishes):
    return not not_exported(*wishes)


# Exporting takes seconds, so several modifications go together, each of them once.
@covering(
    encoder_decoders(packed([wish for wish in MODIFICATIONS if expressible([wish])], most=4)),
    besides=encoder_decoders(filter(expressible, ALONE + combinations())),
)
@torch.no_grad()
def test_exported_it_computes_the_same_at_other_sizes(modifications):
    model = small_model(modifications=modifications, dtype=torch.float32)
    rows, n, m = (torch.export.Dim(name, min=3, max=100) for name in ("rows", "n", "m"))
    exported = torch.export.export(
        Pass(model),
        (random_ids(3, 5, seeded(6)), random_ids(3, 4, seeded(7))),
        dynamic_shapes=({0: rows, 1: n}, {0: rows, 1: m}),
    )
    source, target = random_ids(4, 8, seeded(8)), random_ids(4, 7, seeded(9))
    source[1, 5:] = sixfold.PAD
    torch.testing.assert_close(exported.module()(source, target), Pass(model)(source, target), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (("rotary", "lightweight_convolution"), ("rotary", "rotate")),
        (("lstm", "rotary"), ("lstm", "rotary", "position")),
        (("gru", "learned_positions"), ("gru", "learned_positions", "position")),
        (("rnn", "swiglu"), ("rnn", "swiglu", "feed_forward")),
        (("lstm", "rms_norm"), ("lstm", "rms_norm", "norm", "stack")),
        (("bahdanau", "cross_heads"), ("bahdanau", "cross_heads", "decoder_stack")),
        (("bahdanau", "transparent_attention"), ("bahdanau", "transparent_attention", "bridge")),
        (("luong", "rotary"), ("luong", "rotary", "position")),
        (("luong", "cross_heads"), ("luong", "cross_heads", "decoder_stack")),
        (("gnmt", "rezero"), ("gnmt", "rezero", "final")),
        (("gnmt", "transparent_attention"), ("gnmt", "transparent_attention", "bridge")),
        (("conv_s2s", "rotary"), ("conv_s2s", "rotary", "position")),
        (("conv_s2s", "transparent_attention"), ("conv_s2s", "transparent_attention", "bridge")),
        (("bytenet", "shaw"), ("bytenet", "shaw", "position")),
        (("bytenet", "rms_norm"), ("bytenet", "rms_norm", "norm")),
        (("word_window", "t5_bias"), ("word_window", "t5_bias", "position")),
        (("deep_att", "cross_heads"), ("deep_att", "cross_heads", "decoder_stack")),
        (("moe_lstm:experts=4,k=2", "rms_norm"), ("moe_lstm", "rms_norm", "norm", "stack")),
        (("rms_norm", "rezero"), ("rms_norm", "rezero", "norm")),
        (("gelu", "swiglu"), ("gelu", "activation", "swiglu")),
        (("switch", "geglu"), ("switch", "geglu", "feed_forward")),
        (("post_norm", "rezero"), ("post_norm", "rezero", "residual")),
        (("shaw", "t5_bias"), ("shaw", "t5_bias", "position")),
        (("untied", "tied_decoder"), ("untied", "tied_decoder", "tables")),
        (("evolved", "weighted"), ("evolved", "weighted")),
        (("funnel:blocks=2", "transparent_attention"), ("transparent_attention", "funnel")),
        (("funnel:blocks=2", "synthesizer_random_plus"), ("funnel", "plain attention")),
        (("block_sharing", "switch:experts=4,every=2"), ("block_sharing", "feed_forward", "alike")),
        (("universal:steps=5", "transparent_attention"), ("universal", "bridge")),
    ],
    ids=lambda value: "+".join(value),
)
def test_what_does_not_go_together_says_why(wishes, words):
    why = refusal("encoder_decoder", *wishes)
    assert why is not None
    assert all(word in why for word in words), why
