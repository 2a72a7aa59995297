"""Dynamic convolution against a loop, and against the lightweight one."""

import pytest
import torch
import torch.nn.functional as F

from sixfold.modifications._shared.convolution import StudyConvolution
from tests.support.small import assert_close, seeded
from tests.support.stage import attention_in, call_for, padded_call, randomly


def by_loop(part, x, causal):
    u = F.glu(part.input(x))
    length, channels = u.shape[1:]
    kernel = part.to_logits(u).unflatten(-1, (part.width, part.heads)).softmax(2)  # (B, L, w, H)
    y = torch.zeros_like(u)
    for t in range(length):
        for j in range(part.width):
            s = t + j - (part.width - 1 if causal else part.width // 2)
            for c in range(channels if 0 <= s < length else 0):
                y[:, t, c] += kernel[:, t, j, c // (channels // part.heads)] * u[:, s, c]
    return part.output(part.pointwise(y + part.bias) if isinstance(part, StudyConvolution) else y)


@pytest.mark.parametrize("form", [":widths=3", ":widths=4", ":widths=9,shared=8", "_study"])
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("length", [1, 6, 16, 37])  # less than a block of tokens, one, several
@torch.no_grad()
def test_it_is_the_sum_over_a_window_with_the_kernel_of_its_own_token(form, causal, length):
    part = randomly(attention_in(f"dynamic_convolution{form}", causal))
    x = torch.randn(2, length, 16, dtype=torch.float64, generator=seeded(1))
    assert_close(part(x, call_for(x, causal)), by_loop(part, x, causal), within=1e-12)


@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@torch.no_grad()
def test_kernels_from_a_bias_alone_are_those_of_the_lightweight_one(causal):
    dynamic, light = (
        randomly(attention_in(f"{kind}_convolution_study", causal)) for kind in ("dynamic", "lightweight")
    )
    dynamic.to_logits.weight.zero_()
    dynamic.to_logits.bias.copy_(light.logits.T.flatten())
    for name in ("input", "pointwise", "output"):
        getattr(dynamic, name).load_state_dict(getattr(light, name).state_dict())
    dynamic.bias.copy_(light.bias)
    x = torch.randn(2, 12, 16, dtype=torch.float64, generator=seeded(2))
    assert_close(dynamic(x, call_for(x, causal)), light(x, call_for(x, causal)), within=1e-12)


def test_in_a_decoder_no_kernel_is_made_by_a_later_token():
    part = randomly(attention_in("dynamic_convolution:widths=3", causal=True))
    x = torch.randn(1, 5, 16, dtype=torch.float64, generator=seeded(3))
    jacobian = torch.autograd.functional.jacobian(lambda x: part(x, call_for(x, True)).sum((0, 2)), x)[
        :, 0
    ]  # (L, L, D)
    for t in range(5):
        seen = jacobian[t].abs().amax(-1) > 0
        assert seen.tolist() == [t - 2 <= s <= t for s in range(5)]


@pytest.mark.parametrize("real", [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 1, 1, 0, 1, 1]])
@torch.no_grad()
def test_padding_is_as_if_it_were_not_there(real):
    part = randomly(attention_in("dynamic_convolution:widths=3", causal=False))
    x, real = torch.randn(1, 6, 16, dtype=torch.float64, generator=seeded(4)), torch.tensor([real]).bool()
    alone = x[real][None]
    assert_close(part(x, padded_call(real, False))[real], part(alone, call_for(alone, False))[0], within=1e-12)
