"""Means of neighbours, against a loop; the same wherever padding stands."""

import pytest
import torch

from sixfold import Tap
from sixfold.core.inputs import begin
from sixfold.modifications.funnel import mean_of_neighbours, shortened
from tests.support.small import assert_close, pad, random_ids, random_rows, seeded, small_model

DEEP = {"encoder_layers": 6}
FORMS = ("funnel", "funnel_study")


def normal(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pool", [1, 2, 3])
def test_each_mean_is_of_the_real_tokens_that_stand_together(pool, side):
    lengths = (7, 4, 3, 1)
    ids, x = pad(random_rows(lengths, seeded(1)), side), normal(4, 7, 16)
    got = mean_of_neighbours(x, begin(ids, None, causal=False), pool)
    after = shortened(begin(ids, None, causal=False), x, pool)
    assert after.real.shape == got.shape[:2]
    for b, length in enumerate(lengths):
        tokens = x[b, ids[b] != 0]
        means = [tokens[i : i + pool].mean(0) for i in range(0, length, pool)]
        assert after.real[b].sum() == len(means)
        assert_close(got[b, after.real[b]], torch.stack(means))
        assert (got[b, ~after.real[b]] == 0).all()


def test_without_padding_too_and_an_odd_length_rounds_up():
    x, ids = normal(2, 5, 16), random_ids(2, 5, seeded(2))
    call = begin(ids, None, causal=False)
    got = mean_of_neighbours(x, call, 2)
    assert_close(got, torch.stack([(x[:, 0] + x[:, 1]) / 2, (x[:, 2] + x[:, 3]) / 2, x[:, 4]], 1))
    after = shortened(call, x, 2)
    assert after.real is None
    assert after.positions.tolist() == after.key_positions.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("wish", "queries"),
    [("funnel", [512, 512, 256, 256, 128, 128]), ("funnel_study", [512, 512, 512, 256, 256, 128])],
)
@torch.no_grad()
def test_a_text_of_512_leaves_128_states_and_only_its_blocks_first_attentions_see_more(wish, queries):
    model, tap = small_model(modifications=(wish,), **DEEP), Tap(fields=("q", "k"))
    memory = model.encode(random_ids(1, 512, seeded(3)), tap=tap)
    assert memory.states[-1].shape == (1, 128, 16)
    lengths = [[tap[f"encoder.{layer}.attention", field].shape[2] for layer in range(6)] for field in "qk"]
    assert lengths == [queries, [512, 512, 512, 256, 256, 128]]


@pytest.mark.parametrize("norm", [(), ("post_norm",), ("rezero",)], ids=["pre-norm", "post-norm", "no norm"])
@torch.no_grad()
def test_means_ask_all_tokens(norm):
    """By a loop over means and heads, for the first layer of the second block."""
    model, ids = small_model(modifications=("funnel:blocks=2", "no_positions", *norm)), random_ids(1, 5, seeded(10))
    layer, call = model.encoder.layers[1], begin(ids, None, causal=False)
    if norm == ("rezero",):
        layer.around_attention.alpha += 0.5
    x, call = model.encoder_input(ids, model.roles["source"], call)
    x = model.encoder.layers[0](x, call)
    means = torch.stack([x[0, :2].mean(0), x[0, 2:4].mean(0), x[0, 4]])
    norm_of = layer.around_attention.norm if not norm else torch.nn.Identity()
    w_q, w_k, w_v = layer.attention.qkv.weight.chunk(3)
    answers = []
    for mean in means:
        heads = []
        for h in (slice(0, 8), slice(8, 16)):
            keys, values = norm_of(x[0]) @ w_k[h].T, norm_of(x[0]) @ w_v[h].T
            heads.append((keys @ (w_q[h] @ norm_of(mean)) / 8**0.5).softmax(0) @ values)
        answers.append(layer.attention.output.weight @ torch.cat(heads))
    plain = layer.around_attention(means[None], lambda y, _: torch.stack(answers)[None], call)
    expected = layer.around_feed_forward(plain, layer.feed_forward, call)
    assert_close(model.encode(ids).states[-1], model.encoder.final(expected))


@pytest.mark.parametrize("position", ["no_positions", "t5_bias", "rotary", "shaw"])
@torch.no_grad()
def test_it_is_its_layers_with_a_mean_in_the_middle_of_some(position):
    model, ids = small_model(modifications=("funnel_study", position), **DEEP), random_ids(2, 9, seeded(4))
    call = begin(ids, None, causal=False)
    x, call = model.encoder_input(ids, model.roles["source"], call)
    for depth, layer in enumerate(model.encoder.layers):
        x = layer.around_attention(x, layer.attention, call)
        if depth in (2, 4):
            if x.shape[1] % 2:
                x = torch.cat([x, x[:, -1:]], 1)  # the mean of a token with itself
            x = (x[:, ::2] + x[:, 1::2]) / 2
            anew = begin(ids[:, : x.shape[1]], None, causal=False)  # positions 0, 1, …
            _, call = model.encoder_input(ids[:, : x.shape[1]], model.roles["source"], anew)
        x = layer.around_feed_forward(x, layer.feed_forward, call)
    assert_close(model.encode(ids).states[-1], model.encoder.final(x))


@pytest.mark.parametrize("wish", ["funnel", "funnel_study"])
@pytest.mark.parametrize("position", ["no_positions", "t5_bias", "rotary", "shaw"])
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_a_row_in_company_is_the_row_alone(side, position, wish):
    model = small_model(modifications=(wish, position), **DEEP)
    rows, target = random_rows((9, 6, 3, 1), seeded(5)), random_ids(4, 3, seeded(6))
    memory = model.encode(pad(rows, side))
    together = model.decode(target, memory)
    for b, row in enumerate(rows):
        alone = model.encode(row[None])
        assert_close(memory.states[-1][b, memory.real[b]], alone.states[-1][0])
        assert_close(together[b : b + 1], model.decode(target[b : b + 1], alone))


@pytest.mark.parametrize("form", [f"{name}:{option}" for name in FORMS for option in ("pool=1", "blocks=1")])
@torch.no_grad()
def test_without_pooling_it_is_the_plain_model(form):
    plain, model = small_model(**DEEP), small_model(modifications=(form,), **DEEP)
    model.load_state_dict(plain.state_dict())
    source, target = pad(random_rows((7, 4), seeded(7))), random_ids(2, 3, seeded(8))
    assert_close(model.decode(target, model.encode(source)), plain.decode(target, plain.encode(source)))


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_a_classifier_takes_the_mean_of_what_is_left(side):
    model = small_model("encoder_only", ("funnel:blocks=2",), classes=3)
    rows = random_rows((7, 2), seeded(9))
    assert_close(model.classify(pad(rows, side)), torch.cat([model.classify(row[None]) for row in rows]))


def test_scores_that_it_would_not_compute_are_refused():
    """Attention with further scores is an Attention, too."""
    with pytest.raises(ValueError, match="plain attention; with another attention use funnel_study"):
        small_model(modifications=("funnel:blocks=2", "synthesizer_random_plus"))
    small_model(modifications=("funnel_study:blocks=2", "synthesizer_random_plus"))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("decoder_only", "blocks=2", "contains later tokens"),
        ("encoder_only", "blocks=2", "can only classify"),
        ("encoder_decoder", "blocks=3", "2 encoder layers don't divide into 3 blocks"),
        ("encoder_decoder", "blocks=0", "blocks and pool must be at least 1, got 0 and 2"),
    ],
)
def test_what_cannot_be_a_funnel_is_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        small_model(kind, (f"funnel:{options}",))
