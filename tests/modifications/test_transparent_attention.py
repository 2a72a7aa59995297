"""Transparent attention."""

import pytest
import torch

from sixfold import Cache
from tests.support.small import assert_close, pad, random_ids, random_rows, seeded, small_model

SIZES = {"encoder_layers": 3, "decoder_layers": 2}  # four states, two memories


def model_and_states(*modifications, **rest):
    """A model, a source, and what its encoder gave to the bridge."""
    model, source = small_model(modifications=("transparent_attention", *modifications), **SIZES, **rest), []
    model.bridge.register_forward_hook(lambda part, given, got: source.append(given[0]))
    return model, source


@torch.no_grad()
def test_each_memory_is_its_mixture_of_all_states():
    model, seen = model_and_states()
    memories = model.encode(random_ids(2, 5, seeded(1))).states
    (states,) = seen
    assert model.bridge.weight.shape == (4, 2)
    assert len(states) == 4
    for j in range(2):
        raised = [model.bridge.weight[i, j].exp() for i in range(4)]
        expected = sum(r / sum(raised) * state for r, state in zip(raised, states, strict=True))
        assert_close(memories[j], expected, within=1e-12)
    assert (memories[0] - memories[1]).abs().max() > 1e-3


@torch.no_grad()
def test_the_first_state_is_the_embedding_and_the_last_is_normed():
    model, seen = model_and_states()
    entered = []
    model.encoder_input.register_forward_hook(lambda part, given, got: entered.append(got[0]))
    model.encode(random_ids(2, 5, seeded(1)))
    assert torch.equal(seen[0][0], entered[0])
    assert_close(seen[0][-1].mean(-1), torch.zeros(2, 5, dtype=torch.float64))


@torch.no_grad()
def test_with_all_weight_on_the_last_state_it_is_the_plain_transformer():
    plain, (model, _) = small_model(seed=1, **SIZES), model_and_states()
    model.load_state_dict({**plain.state_dict(), "bridge.weight": model.bridge.weight})
    source, target = pad(random_rows((4, 2), seeded(2))), random_ids(2, 5, seeded(3))
    assert (model.decode(target, model.encode(source)) - plain.decode(target, plain.encode(source))).abs().max() > 1e-3
    model.bridge.weight[-1] = 1e4
    assert_close(model.decode(target, model.encode(source)), plain.decode(target, plain.encode(source)), within=1e-12)


@torch.no_grad()
def test_equal_weights_are_the_mean():
    model, seen = model_and_states()
    model.bridge.weight.fill_(5.0)
    for memory in model.encode(random_ids(2, 5, seeded(1))).states:
        assert_close(memory, torch.stack(seen[0]).mean(0), within=1e-12)


@pytest.mark.parametrize("position", ["t5_bias", "rotary", "shaw"])
@torch.no_grad()
def test_a_cache_holds_a_memory_for_each_layer(position):
    model, _ = model_and_states(position)
    sources, target = random_rows((4, 2, 5), seeded(4)), random_ids(3, 6, seeded(5))
    expected = torch.cat([model.decode(target[i : i + 1], model.encode(sources[i][None])) for i in range(3)])
    cache = Cache(model.encode(pad(sources[:2]))).join(Cache(model.encode(pad(sources[2:]))))
    first = model.decode(target[:, :2], cache=cache)
    order = torch.tensor([2, 0, 1])
    cache = cache.select(order)
    rest = [model.decode(target[order, t : t + 1], cache=cache) for t in range(2, 6)]
    assert_close(first, expected[:, :2])
    assert_close(torch.cat(rest, 1), expected[order, 2:])


def test_dropout_acts_on_the_weights_in_training_only():
    model, _ = model_and_states(dropout=0.5)
    ids = random_ids(2, 5, seeded(1))
    states = [torch.randn(2, 3, 16, dtype=torch.float64, generator=seeded(i)) for i in range(4)]
    assert torch.equal(model.encode(ids).states[0], model.encode(ids).states[0])
    model.train()
    drawn = [model.bridge(states)[0] for _ in range(8)]
    assert any((drawn[0] - other).abs().max() > 1e-6 for other in drawn)


def test_an_encoder_with_other_states_is_refused():
    model, _ = model_and_states()
    states = [torch.zeros(2, 5, 16, dtype=torch.float64) for _ in range(4)]
    with pytest.raises(ValueError, match="this encoder outputs 3"):
        model.bridge(states[:3])
    states[2] = states[2][:, ::2]
    with pytest.raises(ValueError, match=r"mixes 4 states of one shape"):
        model.bridge(states)


def test_steps_that_are_not_the_layers_are_refused_when_it_is_built():
    for wish in ("universal:steps=5", "universal_study"):
        with pytest.raises(ValueError, match=r"universal: .* give steps=3"):
            model_and_states(wish)
    model_and_states("universal:steps=3")


def test_a_model_without_an_encoder_has_no_use_for_it():
    with pytest.raises(ValueError, match="DecoderOnly does not use it"):
        small_model("decoder_only", ("transparent_attention",))
