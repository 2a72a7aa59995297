"""What a mixture of experts and a switch have in common: sorting, room, balance."""

import pytest
import torch

import sixfold
from sixfold import Batch, Spec
from sixfold.modifications._shared.experts import Experts, Plan, balance_loss, first_in_line, within_capacity
from tests.support.small import assert_close, pad, random_ids, random_rows, seeded, small_model, small_sizes

BOTH = ("mixture_of_experts", "switch")


def plan(experts=4, capacity=1.0, group=1024):
    return Plan(name="test", experts=experts, every=1, d_expert=6, capacity=capacity, group=group, balance=0.01)


def test_each_row_is_computed_by_its_own_expert():
    experts = Experts(Spec(sizes=small_sizes()), experts=4, d_expert=6).double()
    x = torch.randn(7, 16, dtype=torch.float64, generator=seeded(1))
    chosen = torch.tensor([[3, 1], [0, 3], [4, 4], [1, 0], [3, 4], [3, 0], [1, 3]])  # nobody chose 2; 4 is nowhere
    got = experts(x, chosen)
    for token, choices in enumerate(chosen.tolist()):
        for choice, e in enumerate(choices):
            naive = torch.relu(x[token] @ experts.inner[e]) @ experts.outer[e] if e < 4 else torch.zeros(16).double()
            assert_close(got[token, choice], naive, within=1e-12)


def test_room_for_one_keeps_the_first_token_of_each_expert():
    chosen = torch.tensor([[0], [1], [0], [1], [2], [0]])
    kept = first_in_line(chosen, torch.zeros(6, dtype=torch.long), 3, capacity=1)
    assert kept[:, 0].tolist() == [True, True, False, False, True, False]


def test_first_choices_come_before_second_ones_and_groups_do_not_mind_each_other():
    chosen = torch.tensor([[0, 1], [1, 0], [1, 0], [2, 1]])
    kept = first_in_line(chosen, torch.zeros(4, dtype=torch.long), 3, capacity=2)
    assert kept.tolist() == [[True, False], [True, True], [True, False], [True, False]]
    kept = first_in_line(chosen, torch.tensor([0, 0, 1, 1]), 3, capacity=1)
    assert kept.tolist() == [[True, False], [True, False], [True, True], [True, False]]


@pytest.mark.parametrize(
    ("tokens", "group", "capacity", "kept"), [(40, 1024, 1.0, 10), (40, 20, 1.2, 12), (8, 9, 1, 4)]
)
def test_an_expert_takes_its_capacity_of_each_group(tokens, group, capacity, kept):
    """⌊40·1/4⌋ = 10; ⌊20·1.2/4⌋ = 6 of each of two groups; never less than 4."""
    chosen = within_capacity(torch.zeros(tokens, 1, dtype=torch.long), plan(capacity=capacity, group=group))
    assert (chosen == 0).sum() == kept


def test_a_study_group_has_38_places_in_a_switch():
    chosen = within_capacity(torch.zeros(1024, 1, dtype=torch.long), plan(experts=32, capacity=1.2))
    assert (chosen == 0).sum() == 38
    assert (chosen[:38] == 0).all()


def test_padding_takes_no_room():
    chosen = torch.tensor([[4], [0], [4], [0], [4], [0], [0], [0]])
    assert within_capacity(chosen, plan(capacity=1)).flatten().tolist() == [4, 0, 4, 0, 4, 0, 0, 4]


def test_the_balance_loss_is_1_if_all_is_even_and_e_if_one_expert_has_all():
    even, first = torch.full((8, 4), 0.25).double(), torch.arange(8) % 4
    assert_close(balance_loss(even, first, None).item(), 1.0)
    assert_close(balance_loss(torch.eye(4).double()[[2] * 8], torch.full((8,), 2), None).item(), 4.0)


def test_padding_is_not_counted_in_the_balance_loss():
    probs = torch.rand(9, 4, dtype=torch.float64, generator=seeded(2)).softmax(-1)
    first, real = probs.argmax(-1), torch.tensor([1, 0, 1, 1, 0, 0, 1, 1, 1]).bool()
    alone = balance_loss(probs[real], first[real], None)
    assert_close(balance_loss(probs, first, real), alone)
    share = [(first[real] == e).double().mean() * probs[real][:, e].mean() for e in range(4)]
    assert_close(alone, 4 * sum(share))


@pytest.mark.parametrize("name", BOTH)
def test_one_expert_is_a_plain_feed_forward_network(name):
    model = small_model("encoder_only", (f"{name}:experts=1,every=1,d_expert=32",))
    plain = small_model("encoder_only")
    for layer, same in zip(model.stack.layers, plain.stack.layers, strict=True):
        with torch.no_grad():
            same.feed_forward.inner.weight.copy_(layer.feed_forward.experts.inner[0].T)
            same.feed_forward.outer.weight.copy_(layer.feed_forward.experts.outer[0].T)
            same.load_state_dict(layer.state_dict(), strict=False)
    plain.load_state_dict(model.state_dict(), strict=False)
    ids = random_ids(3, 7, seeded(3))
    assert_close(model.encode(ids), plain.encode(ids))
    assert_close(model.train().encode(ids), plain.encode(ids))  # nothing is dropped, no noise matters


@pytest.mark.parametrize("name", BOTH)
@torch.no_grad()
def test_only_training_has_chance_and_limits(name):
    model, ids = small_model("encoder_only", (f"{name}:experts=4,every=1",)), random_ids(8, 16, seeded(4))
    for layer in model.stack.layers:
        layer.feed_forward.router.weight.mul_(20)  # so sure of the first expert that chance has a say
    assert torch.equal(model.encode(ids), model.encode(ids))
    model.train()
    assert not torch.equal(model.encode(ids), model.encode(ids))


@pytest.mark.parametrize("name", BOTH)
def test_the_auxiliary_loss_is_the_sum_over_layers_and_reaches_the_router(name):
    model, ids = small_model("encoder_only", (f"{name}:experts=4,every=1,balance=0.5",)), random_ids(4, 9, seeded(5))
    for layer in model.stack.layers:
        torch.nn.init.zeros_(layer.feed_forward.router.weight)  # p = 1/4 everywhere, so m does not matter
    assert model(Batch(source=ids, targets=ids)).auxiliary == 0  # in evaluation
    losses = model.train()(Batch(source=ids, targets=ids))
    assert_close(losses.auxiliary.item(), 2 * 0.5 * 1.0)
    losses.auxiliary.backward()
    assert all((layer.feed_forward.router.weight.grad != 0).any() for layer in model.stack.layers)


def moved_by_another_last_word(model, ids):
    """Which tokens (B, L) have another state for at least one other last word of the first row."""
    before, moved = model.decode(ids), torch.zeros_like(ids, dtype=torch.bool)
    for word in range(3, 40):
        other = ids.clone()
        other[0, -1] = word
        moved |= ((model.decode(other) - before).abs() > 1e-9).any(-1)  # other rows of a product may move a last bit
    return moved


@pytest.mark.parametrize(("name", "calm"), [("switch", "jitter=0"), ("mixture_of_experts", "second_threshold=0")])
@torch.no_grad()
def test_what_a_limit_leaks_in_training(name, calm):
    """From one text to others; with second choices, which wait for all first ones, from later words to earlier ones."""
    model = small_model("decoder_only", (f"{name}:experts=4,every=1,capacity=1,{calm}",))
    ids = random_ids(2, 16, seeded(9))
    itself = torch.zeros_like(ids, dtype=torch.bool)
    itself[0, -1] = True
    assert torch.equal(moved_by_another_last_word(model, ids), itself)  # in evaluation nothing else
    moved = moved_by_another_last_word(model.train(), ids)
    assert moved[1].any()
    assert moved[0, :-1].any() == (name == "mixture_of_experts")


def test_a_later_first_choice_takes_the_room_of_an_earlier_second_choice():
    """Room for 4: the first token's second choice is the fifth visit to expert 0 once the last token goes there."""
    chosen = torch.tensor([[1, 0], [0, 2], [0, 2], [0, 2], [3, 2]])
    assert within_capacity(chosen, plan())[0].tolist() == [1, 0]
    chosen[-1] = torch.tensor([0, 2])
    assert within_capacity(chosen, plan())[0].tolist() == [1, 4]  # 4 is nowhere


@pytest.mark.parametrize("name", BOTH)
def test_the_decoder_may_have_another_capacity(name):
    options = f"{name}:experts=4,every=1,capacity=2"
    for wish, expected in ((options, (2, 2)), (f"{options},decoder_capacity=1.25", (2, 1.25))):
        model = sixfold.build(small_sizes(), [wish], device="meta")
        stacks = (model.encoder, model.decoder)
        assert tuple(stack.layers[0].feed_forward.plan.capacity for stack in stacks) == expected


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("recompute", [False, True])
def test_in_training_padding_changes_nothing(name, recompute):
    """With room for all and no chance, the gradients of rows with padding are those of the rows alone."""
    calm = "jitter=0" if name == "switch" else "second_threshold=0"
    model = small_model("encoder_only", (f"{name}:experts=4,every=1,capacity=4,balance=0,{calm}",)).train()
    rows = random_rows((6, 3, 5), seeded(6))
    gradients = []
    for batches in ([pad(rows)], [row[None] for row in rows]):
        model.zero_grad()
        sum(model(Batch(source=ids, targets=ids), recompute=recompute).sum for ids in batches).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert_close(*gradients)


@pytest.mark.parametrize("name", BOTH)
@torch.no_grad()
def test_padding_is_sent_nowhere(name):
    model = small_model("encoder_only", (f"{name}:experts=4,every=1",))
    seen = []
    hook = model.stack.layers[0].feed_forward.experts.register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    ids = pad(random_rows((5, 2), seeded(7)))
    model.encode(ids)
    hook.remove()
    assert torch.equal((seen[0] == 4).all(-1), (ids == sixfold.PAD).flatten())
    assert torch.equal((seen[0] < 4).all(-1), (ids != sixfold.PAD).flatten())


@pytest.mark.parametrize("name", BOTH)
def test_experts_lie_in_every_fourth_layer(name):
    model = sixfold.build(small_sizes(encoder_layers=9, decoder_layers=4), [name], device="meta")
    where = [hasattr(layer.feed_forward, "router") for layer in model.encoder.layers]
    assert where == [False, False, False, True, False, False, False, True, False]
    assert [hasattr(layer.feed_forward, "router") for layer in model.decoder.layers] == [False, False, False, True]


@pytest.mark.parametrize("name", BOTH)
def test_a_stack_without_experts_is_refused(name):
    with pytest.raises(ValueError, match=r"every 4 has experts, but a stack has only 2.*every=2"):
        small_model(modifications=(name,))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("experts=0", "experts must be at least 1, got 0"),
        ("every=0", "every must be at least 1, got 0"),
        ("d_expert=0", "d_expert must be at least 1, got 0"),
        ("group=0", "group must be at least 1, got 0"),
        ("capacity=0", r"capacity must be more than 0, got 0\.0"),
        ("decoder_capacity=0", r"decoder_capacity must be more than 0, got 0\.0"),
        ("balance=-1", r"balance must be at least 0, got -1\.0"),
    ],
)
@pytest.mark.parametrize("name", BOTH)
def test_options_that_make_no_sense_are_refused(name, option, message):
    with pytest.raises(ValueError, match=f"{name}: {message}"):
        small_model(modifications=(f"{name}:{option}",))


@pytest.mark.parametrize("name", BOTH)
@torch.no_grad()
def test_the_router_computes_in_float32(name):
    part = small_model("encoder_only", (f"{name}:experts=4,every=1",)).bfloat16().stack.layers[0].feed_forward
    x = torch.randn(5, 16, generator=seeded(8)).bfloat16()
    exact = (x.float() @ part.router.weight.float().T).softmax(-1)
    assert torch.equal(part.router(x), exact)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(part.router(x), exact)


@pytest.mark.parametrize("name", BOTH)
def test_weights_start_with_a_tenth_of_the_variance(name):
    sizes = small_sizes(d_model=64, d_ff=256)
    part = sixfold.build(sizes, [f"{name}:every=1"], "encoder_only", seed=1).stack.layers[0].feed_forward
    for weight, fan_in in (
        (part.router.weight, 64),
        (part.experts.inner, 64),
        (part.experts.outer, part.plan.d_expert),
    ):
        std = (0.1 / fan_in) ** 0.5
        assert weight.abs().max() <= 2 * std
        assert 0.8 * std < weight.std() < 0.95 * std  # cut at 2σ, a normal has a standard deviation of 0.88
