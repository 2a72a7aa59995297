"""The two experts of a token, against a loop."""

import pytest
import torch

from tests.support.small import assert_close, seeded, small_model
from tests.support.stage import call_at


def part_of(options):
    return small_model("encoder_only", (f"mixture_of_experts:{options}",)).stack.layers[0].feed_forward


@torch.no_grad()
def test_a_token_is_the_sum_of_its_two_best_experts():
    part = part_of("experts=5,every=1,d_expert=7")
    part.router.weight.normal_(generator=seeded(1))
    x = torch.randn(2, 6, 16, dtype=torch.float64, generator=seeded(2))
    got = part(x, call_at(torch.arange(6)[None]))
    for b, t in [(b, t) for b in range(2) for t in range(6)]:
        p = (part.router.weight @ x[b, t]).softmax(0)
        first, second = p.argsort(descending=True)[:2].tolist()
        experts = [torch.relu(x[b, t] @ part.experts.inner[e]) @ part.experts.outer[e] for e in (first, second)]
        expected = (p[first] * experts[0] + p[second] * experts[1]) / (p[first] + p[second])
        assert_close(got[b, t], expected, within=1e-12)


def test_the_second_visit_takes_place_with_probability_of_its_gate_over_the_threshold():
    part = part_of("experts=4,every=1")
    torch.manual_seed(3)
    gates = torch.tensor([0.95, 0.05], dtype=torch.float64).expand(20_000, 2)
    drawn = part.drawn(gates)
    assert drawn[:, 0].all()
    assert drawn[:, 1].double().mean().item() == pytest.approx(0.05 / 0.2, abs=0.01)
    assert part.drawn(torch.tensor([[0.8, 0.2]]).expand(1000, 2)).all()
    assert part_of("experts=4,every=1,second_threshold=9").drawn(gates)[:, 0].all()


def test_a_threshold_of_0_takes_all_and_a_negative_one_is_refused():
    assert part_of("experts=4,every=1,second_threshold=0").drawn(torch.tensor([[0.99, 0.01]]).expand(1000, 2)).all()
    with pytest.raises(ValueError, match=r"second_threshold must be at least 0, got -0\.1"):
        part_of("every=1,second_threshold=-0.1")
    with pytest.raises(ValueError, match="second_threshold must be at least 0, got nan"):
        part_of("every=1,second_threshold=nan")


def test_the_gates_carry_a_gradient_to_the_router():
    part = part_of("experts=4,every=1")
    x = torch.randn(1, 6, 16, dtype=torch.float64, generator=seeded(4))
    part(x, call_at(torch.arange(6)[None])).square().sum().backward()
    assert (part.router.weight.grad != 0).any()
