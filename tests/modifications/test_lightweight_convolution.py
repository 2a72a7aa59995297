"""Lightweight convolution against a loop, against PyTorch's own, and at its borders."""

import pytest
import torch
import torch.nn.functional as F

import sixfold
from sixfold.modifications._shared.convolution import StudyConvolution
from tests.support.small import assert_close, random_ids, seeded, small_model, small_sizes
from tests.support.stage import attention_in, call_for, padded_call, randomly


def by_loop(part, x, causal):
    """One token, one channel, one tap after another."""
    u = F.glu(part.input(x))
    length, channels = u.shape[1:]
    kernel = part.logits.softmax(-1)  # (H, w)
    y = torch.zeros_like(u)
    for t in range(length):
        for c in range(channels):
            h = c // (channels // part.heads)
            for j in range(part.width):
                s = t + j - (part.width - 1 if causal else part.width // 2)
                if 0 <= s < length:
                    y[:, t, c] += kernel[h, j] * u[:, s, c]
    return part.output(part.pointwise(y + part.bias) if isinstance(part, StudyConvolution) else y)


@pytest.mark.parametrize("form", [":widths=3", ":widths=4", ":widths=1", ":widths=9,shared=8", "_study"])
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@torch.no_grad()
def test_it_is_the_sum_over_a_window(form, causal):
    part = randomly(attention_in(f"lightweight_convolution{form}", causal))
    x = torch.randn(2, 6, 16, dtype=torch.float64, generator=seeded(1))
    assert_close(part(x, call_for(x, causal)), by_loop(part, x, causal), within=1e-12)


@torch.no_grad()
def test_it_is_a_grouped_convolution_with_expanded_kernels():
    part = randomly(attention_in("lightweight_convolution:widths=5", causal=False))
    x = torch.randn(2, 7, 16, dtype=torch.float64, generator=seeded(2))
    weight = part.logits.softmax(-1).repeat_interleave(8, 0)[:, None]  # (C, 1, w): neighbouring channels share
    y = F.conv1d(F.glu(part.input(x)).transpose(1, 2), weight, padding=2, groups=16).transpose(1, 2)
    assert_close(part(x, call_for(x, False)), part.output(y), within=1e-12)


@torch.no_grad()
def test_a_constant_text_stays_constant_away_from_its_borders():
    part = attention_in("lightweight_convolution:widths=3", causal=False)
    x = torch.randn(1, 1, 16, dtype=torch.float64, generator=seeded(3)).expand(1, 6, 16)
    y = part(x, call_for(x, False))
    assert_close(y[:, 1:-1], part.output(F.glu(part.input(x)))[:, 1:-1], within=1e-12)
    assert (y[:, 0] - y[:, 1]).abs().max() > 1e-3


@pytest.mark.parametrize("real", [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 1, 1, 0, 1, 1]])
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@torch.no_grad()
def test_padding_is_as_if_it_were_not_there(real, causal):
    part = randomly(attention_in("lightweight_convolution:widths=3", causal))
    x, real = torch.randn(1, 6, 16, dtype=torch.float64, generator=seeded(4)), torch.tensor([real]).bool()
    alone = x[real][None]
    assert_close(part(x, padded_call(real, causal))[real], part(alone, call_for(alone, causal))[0], within=1e-12)
    both = torch.cat([x, x + 1])  # and in company of a row with less padding
    call = padded_call(torch.cat([real, torch.ones_like(real)]), causal)
    assert_close(part(both, call)[0][real[0]], part(alone, call_for(alone, causal))[0], within=1e-12)


def test_layers_have_the_widths_of_the_paper():
    sizes = small_sizes(encoder_layers=7, decoder_layers=6)
    model = sixfold.build(sizes, ["lightweight_convolution"], device="meta")
    assert [layer.attention.width for layer in model.encoder.layers] == [3, 7, 15, 31, 31, 31, 31]
    assert [layer.attention.width for layer in model.decoder.layers] == [3, 7, 15, 31, 31, 31]


@torch.no_grad()
def test_a_tap_sees_the_band():
    model, ids = small_model("decoder_only", ("lightweight_convolution:widths=2",)), random_ids(2, 4, seeded(5))
    tap = sixfold.Tap(fields=("weights", "heads"))
    model.decode(ids, tap=tap)
    for depth in range(2):
        part, weights = model.stack.layers[depth].attention, tap[f"only.{depth}.attention"]
        old, own = part.logits.softmax(-1)[1]
        expected = torch.diag(own.expand(4)) + torch.diag(old.expand(3), -1)
        assert_close(weights[0, 1], expected, within=1e-12)
        assert tap[f"only.{depth}.attention", "heads"].shape == (2, 2, 4, 8)


@pytest.mark.parametrize("kind", ["lightweight_convolution", "dynamic_convolution"])
@pytest.mark.parametrize(
    ("options", "words"), [("widths=0", "at least 1"), ("shared=3", "16 does not divide into 3"), ("shared=-2", "-2")]
)
def test_impossible_options_are_refused(kind, options, words):
    with pytest.raises(ValueError, match=words):
        small_model(modifications=(f"{kind}:{options}",))


def test_it_has_no_use_for_relative_positions():
    with pytest.raises(ValueError, match="never calls"):
        small_model(modifications=("lightweight_convolution", "t5_bias"))
