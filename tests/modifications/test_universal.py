"""One layer step by step, against a loop; and who halts when."""

import math
from dataclasses import replace

import pytest
import torch

from sixfold import Batch, Tap
from sixfold.core.inputs import begin
from sixfold.modifications._shared.adaptive_computation import EPSILON, Halting, Pondered
from tests.support.small import assert_close, pad, random_ids, random_rows, seeded, small_model


def entered(model, ids):
    """What the stack is called with."""
    return model.input(ids, model.tables[0], begin(ids, None, causal=model.place.causal))


def wave(t, width=16):
    angles = [t / 10000 ** (2 * (c // 2) / width) for c in range(width)]
    return torch.tensor([math.cos(a) if c % 2 else math.sin(a) for c, a in enumerate(angles)], dtype=torch.float64)


@pytest.mark.parametrize("kind", ["decoder_only", "encoder_only"])
@torch.no_grad()
def test_each_step_is_the_layer_of_the_state_with_its_position_and_step(kind):
    model, ids = small_model(kind, ("universal:steps=3",)), random_ids(2, 5, seeded(1))
    table, stack = model.tables[0], model.stack
    positions = torch.stack([wave(i) for i in range(5)])
    _, call = entered(model, ids)
    x = table(ids)
    for t in (1, 2, 3):
        x = stack.layer(x + positions + wave(t), replace(call, depth=t - 1))
    assert_close(stack(*entered(model, ids))[0][-1], stack.final(x))


@torch.no_grad()
def test_a_relative_position_is_not_added_to_the_states():
    model, ids = small_model("encoder_only", ("universal:steps=2", "t5_bias")), random_ids(2, 5, seeded(2))
    x, call = entered(model, ids)
    for t in (1, 2):
        x = model.stack.layer(x + wave(t), replace(call, depth=t - 1))
    assert_close(model.encode(ids), model.stack.final(x))


@torch.no_grad()
def test_one_step_is_one_plain_layer_behind_the_signal_of_step_1():
    model, plain = small_model("encoder_only", ("universal:steps=1",)), small_model("encoder_only", encoder_layers=1)
    plain.load_state_dict({k.replace("stack.layer.", "stack.layers.0."): v for k, v in model.state_dict().items()})
    x, call = entered(plain, random_ids(2, 5, seeded(3)))
    assert_close(model.stack(x, call)[0][-1], plain.stack(x + wave(1), call)[0][-1])


# Halting ---------------------------------------------------------------------------------------------


class Scripted(torch.nn.Module):
    """Gives these logits, step by step, in the place of the gate."""

    def __init__(self, p_TBL):
        super().__init__()
        self.logits = iter(torch.as_tensor(p_TBL, dtype=torch.float64).logit()[..., None])

    def forward(self, x):
        return next(self.logits)


def ponder(p_TBL, states_TBLD):
    """Run the steps with these p. → who took each step, and the sums"""
    halting = Halting(small_model().assembly.spec, steps=len(p_TBL)).double()
    halting.gate = Scripted(p_TBL)
    pondered, took = Pondered.nothing(states_TBLD[0]), []
    for t, state in enumerate(states_TBLD):
        running, pondered = halting(state, state, pondered, last=t == len(p_TBL) - 1)
        took.append(running[..., 0].tolist())
    return took, pondered


@torch.no_grad()
def test_the_example_of_the_docstring():
    p = [[[0.6, 0.3]], [[0.6, 0.3]], [[0.6, 0.3]], [[0.6, 0.3]]]
    states = torch.randn(4, 1, 2, 16, dtype=torch.float64, generator=seeded(4))
    took, pondered = ponder(p, states)
    assert took == [[[True, True]], [[True, True]], [[False, True]], [[False, True]]]
    assert_close(pondered.mean[0, 0], 0.6 * states[0, 0, 0] + 0.4 * states[1, 0, 0], within=1e-12)
    weights = torch.tensor([0.3, 0.3, 0.3, 0.1], dtype=torch.float64)
    assert_close(pondered.mean[0, 1], weights @ states[:, 0, 1], within=1e-12)
    assert_close(pondered.steps[0, :, 0].tolist(), [2.4, 4.1], within=1e-12)


@torch.no_grad()
def test_the_weights_of_a_position_sum_to_1_whatever_p_is():
    p = torch.rand(5, 3, 40, dtype=torch.float64, generator=seeded(5)) ** 2
    _, pondered = ponder(p, torch.ones(5, 3, 40, 16, dtype=torch.float64))
    assert_close(pondered.total, torch.ones(3, 40, 1, dtype=torch.float64), within=1e-12)
    assert_close(pondered.mean, torch.ones(3, 40, 16, dtype=torch.float64), within=1e-12)
    for b, t in [(b, t) for b in range(3) for t in range(40)]:
        steps = next((n for n in range(1, 5) if p[:n, b, t].sum() > 1 - EPSILON), 5)
        assert_close(pondered.steps[b, t, 0], steps + 1 - p[: steps - 1, b, t].sum(), within=1e-12)


@torch.no_grad()
def test_who_is_sure_at_once_takes_one_step():
    model, ids = small_model("decoder_only", ("universal:steps=4,halting=true",)), random_ids(2, 5, seeded(6))
    model.stack.halting.gate.bias.fill_(50)
    one = small_model("decoder_only", ("universal:steps=1",))
    one.load_state_dict({k: v for k, v in model.state_dict().items() if "halting" not in k})
    assert_close(model.decode(ids), one.decode(ids))


@torch.no_grad()
def test_who_never_halts_gives_the_state_after_the_last_step():
    model, ids = small_model("decoder_only", ("universal:steps=3,halting=true",)), random_ids(2, 5, seeded(7))
    model.stack.halting.gate.bias.fill_(-50)
    plain = small_model("decoder_only", ("universal:steps=3",))
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "halting" not in k})
    assert_close(model.decode(ids), plain.decode(ids))


@torch.no_grad()
def test_who_has_halted_keeps_its_state_and_is_still_seen():
    """A word that halts at once is copied from step to step, and a word that goes on looks at it at every step."""
    model, ids = small_model("decoder_only", ("universal:steps=3,halting=true",)), random_ids(1, 2, seeded(8))
    model.stack.halting.gate = Scripted([[[0.995, 0.1]]] * 3)
    tap = Tap()
    x, call = entered(model, ids)
    states, _ = model.stack(x, replace(call, tap=tap))
    first, second = states[1][0], states[2][0]
    assert torch.equal(first[0], second[0])
    assert (first[1] - second[1]).abs().max() > 1e-3
    assert list(tap) == [f"only.{step}.attention" for step in range(3)]
    assert all((tap[name][0, :, 1, 0] > 0).all() for name in tap)


def test_the_ponder_cost_is_a_mean_over_what_is_not_padding():
    model = small_model("encoder_only", ("universal:steps=2,halting=true",))
    torch.nn.init.zeros_(model.stack.halting.gate.weight)
    torch.nn.init.zeros_(model.stack.halting.gate.bias)  # p = 1/2: two steps, the second with 1/2
    ids = pad(random_rows((5, 2), seeded(9)))
    losses = model(Batch(source=ids, targets=ids))
    assert_close(losses.auxiliary.item(), 0.01 * 2.5)
    losses.auxiliary.backward()
    assert (model.stack.halting.gate.bias.grad < 0).all()  # the larger p_1, the smaller what remains
    p = torch.where(ids == 0, 0.995, 0.5)  # padding would halt at once
    model.stack.halting.gate = Scripted(torch.stack([p, p]))
    assert_close(model(Batch(source=ids, targets=ids)).auxiliary.item(), 0.01 * 2.5)


def test_the_gate_starts_in_favour_of_halting():
    assert small_model("decoder_only", ("universal:halting=true",)).stack.halting.gate.bias.tolist() == [1.0]


# The study's ------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_study_applies_the_layer_28_times_with_24_step_vectors():
    model, ids = small_model("encoder_only", ("universal_study",)), random_ids(2, 4, seeded(10))
    x, call = entered(model, ids)
    states, _ = model.stack(x, call)
    assert len(states) == 1 + 28
    assert model.stack.clock.table.shape == (24, 16)
    for step in range(28):
        told = x + model.stack.clock.table[step - 2] if 2 <= step < 26 else x
        x = model.stack.layer(told, replace(call, depth=step))
    assert_close(states[-1], model.stack.final(x))
    assert "only.27.attention" in model.attentions


@torch.no_grad()
def test_the_study_gates_each_sublayer():
    model = small_model("encoder_only", ("universal_study:steps=1",))
    part = model.stack.layer.around_feed_forward
    x, y = (torch.randn(2, 3, 16, dtype=torch.float64, generator=seeded(seed)) for seed in (11, 12))

    def dense(linear, rows, a, b):
        return (torch.cat([part.norm(a), part.norm(b)], -1) @ linear.weight[rows].T + linear.bias[rows]).sigmoid()

    z, r = dense(part.gates, slice(16), x, y), dense(part.gates, slice(16, 32), x, y)
    c = dense(part.candidate, slice(16), r * x, y)
    assert_close(part(x, lambda normed, call: y, None), x + (1 - z) * y + z * c, within=1e-12)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ("universal:steps=0", "universal: steps must be at least 1, got 0"),
        ("universal_study:steps=0", "universal_study: steps must be at least 1, got 0"),
        ("universal_study:halting=true", "'universal_study' has no option 'halting'"),
        ("universal:steps=1,halting=true", "2 steps or more to choose from, got 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(wish, message):
    with pytest.raises(ValueError, match=message):
        small_model(modifications=(wish,))
