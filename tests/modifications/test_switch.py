"""The one expert of a token, against a loop."""

import pytest
import torch

from tests.support.small import assert_close, seeded, small_model
from tests.support.stage import call_at


def part_of(options):
    return small_model("encoder_only", (f"switch:{options}",)).stack.layers[0].feed_forward


@pytest.mark.parametrize("mode", ["evaluation", "training"])
@torch.no_grad()
def test_a_token_is_its_best_expert_times_its_probability(mode):
    part = part_of("experts=5,every=1,d_expert=7,capacity=5,jitter=0").train(mode == "training")
    part.router.weight.normal_(generator=seeded(1))
    x = torch.randn(2, 6, 16, dtype=torch.float64, generator=seeded(2))
    got = part(x, call_at(torch.arange(6)[None]))
    for b, t in [(b, t) for b in range(2) for t in range(6)]:
        p = (part.router.weight @ x[b, t]).softmax(0)
        e = p.argmax().item()
        expected = p[e] * (torch.relu(x[b, t] @ part.experts.inner[e]) @ part.experts.outer[e])
        assert_close(got[b, t], expected, within=1e-12)


@torch.no_grad()
def test_a_token_without_room_passes_by():
    part = part_of("experts=4,every=1,capacity=1,jitter=0").train()
    part.router.weight.zero_()
    part.router.weight[2] = 1
    x = torch.rand(1, 20, 16, dtype=torch.float64, generator=seeded(3))  # positive: all choose expert 2
    got = part(x, call_at(torch.arange(20)[None]))[0].abs().sum(-1)
    assert (got[:5] > 0).all()  # ⌊20 · 1 / 4⌋
    assert (got[5:] == 0).all()


def test_noise_keeps_its_bounds_and_is_there_in_half_precision():
    part, ones = part_of("every=1,experts=2,jitter=0.1"), torch.ones(1000, 16, dtype=torch.bfloat16)
    noise = part.jittered(ones)
    assert noise.dtype == torch.float32
    assert noise.min() >= 0.9
    assert noise.max() <= 1.1
    assert noise.min() < 0.91
    assert noise.max() > 1.09


def test_the_probability_carries_a_gradient_to_the_router():
    part = part_of("experts=4,every=1")
    x = torch.randn(1, 6, 16, dtype=torch.float64, generator=seeded(4))
    part(x, call_at(torch.arange(6)[None])).square().sum().backward()
    assert (part.router.weight.grad != 0).any()


def test_too_much_noise_is_refused():
    with pytest.raises(ValueError, match=r"jitter must be at least 0 and less than 1, got 1\.5"):
        part_of("every=1,jitter=1.5")
