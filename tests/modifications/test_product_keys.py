"""The nearest of all pairs of keys, against brute force."""

import pytest
import torch

import sixfold
from tests.support.small import assert_close, seeded, small_model, small_sizes
from tests.support.stage import call_at


def part_of(options="keys=16,nearest=6,d_key=8,heads=3"):
    return small_model("decoder_only", (f"product_keys:layer=0,{options}",)).stack.layers[0].feed_forward


def normal(*shape, seed):
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


@torch.no_grad()
def test_the_nearest_are_those_of_a_search_through_all_pairs():
    part, x = part_of(), normal(2, 4, 16, seed=1)
    slots, weights = part.find(x)
    output = part(x, call_at(torch.arange(4)[None]))
    for b, t in [(b, t) for b in range(2) for t in range(4)]:
        expected = torch.zeros(16, dtype=torch.float64)
        for h in range(3):
            halves = part.query(x[b, t]).view(3, 2, 4)[h]
            first, second = (torch.nn.functional.layer_norm(half, (4,), eps=1e-6) for half in halves)
            scores = [
                (first @ part.sub_keys[0, h, i] + second @ part.sub_keys[1, h, j]).item()
                for i in range(16)
                for j in range(16)
            ]
            best = sorted(range(256), key=lambda i: -scores[i])[:6]
            assert slots[b, t, h].tolist() == best
            share = torch.tensor([scores[i] for i in best], dtype=torch.float64).softmax(0)
            assert_close(weights[b, t, h], share, within=1e-12)
            expected += share @ part.values[best]
        assert_close(output[b, t], expected, within=1e-12)


@torch.no_grad()
def test_with_all_sub_keys_near_one_half_alone_decides_the_order():
    """nearest = keys = 2: of the four sums the two largest."""
    part = part_of("keys=2,nearest=2,d_key=2,heads=1")
    part.sub_keys.copy_(torch.tensor([[[[1.0], [0.0]]], [[[0.1], [0.0]]]]))
    part.query.weight.zero_()
    part.norm.weight.zero_()
    part.norm.bias.fill_(1)  # each half of the query is 1
    slots, weights = part.find(normal(1, 1, 16, seed=2))
    assert slots.flatten().tolist() == [0, 1]  # 1 + 0.1, then 1 + 0
    assert_close(weights.flatten(), torch.tensor([1.1, 1.0]).double().softmax(0), within=1e-7)


def test_gradients_reach_only_what_was_read():
    part, x = part_of(), normal(1, 3, 16, seed=3)
    part(x, call_at(torch.arange(3)[None])).square().sum().backward()
    read = part.find(x)[0].unique()
    assert torch.equal((part.values.grad != 0).any(-1).nonzero()[:, 0], read)
    for p in (part.query.weight, part.query.bias, part.norm.weight, part.sub_keys):
        assert (p.grad != 0).any()


def test_never_are_all_pairs_scored():
    """512 sub-keys in each half: 262,144 pairs for each of 4 · 100 heads would be 10⁸ numbers."""
    sizes = small_sizes()
    part = sixfold.build(sizes, ["product_keys"], "decoder_only", device="meta").stack.layers[0].feed_forward
    largest = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            outs = out if isinstance(out, tuple | list) else [out]
            largest.append(max((o.numel() for o in outs if isinstance(o, torch.Tensor)), default=0))
            return out

    with Watch(), torch.no_grad():
        part(torch.empty(1, 100, 16, device="meta"), None)
    assert max(largest) <= 4 * 100 * 2 * 512


def test_it_lies_before_the_last_layer_of_the_decoder_or_where_one_says():
    def where(stack):
        return [hasattr(layer.feed_forward, "values") for layer in stack.layers]

    sizes, options = small_sizes(decoder_layers=3, encoder_layers=3), "keys=4,nearest=2"
    model = sixfold.build(sizes, [f"product_keys:{options}"])
    assert where(model.encoder) == [False, False, False]
    assert where(model.decoder) == [False, True, False]
    assert where(sixfold.build(sizes, [f"product_keys:{options},layer=0"]).decoder) == [True, False, False]
    assert where(sixfold.build(sizes, [f"product_keys:{options}"], "encoder_only").stack) == [False, True, False]
    with pytest.raises(ValueError, match="no layer 3 in a stack of 3"):
        sixfold.build(sizes, [f"product_keys:{options},layer=3"])


def test_values_do_not_decay():
    model = small_model(modifications=("product_keys:keys=4,nearest=2",))
    *others, values = model.groups()
    assert not values.decay
    assert [p.shape for p in values.parameters] == [(16, 16)]
    everything = [id(p) for group in (*others, values) for p in group.parameters]
    assert sorted(everything) == sorted(id(p) for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("nearest=5,keys=4", r"nearest must be from 1 to keys \(4\), got 5"),
        ("d_key=7", "d_key must be even, got 7"),
        ("heads=0", "heads must be at least 1, got 0"),
        ("layer=-1", "layer must be at least 0, got -1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        small_model(modifications=(f"product_keys:{options}",))
