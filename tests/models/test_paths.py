"""How information travels through a model: chains and distances counted by hand, and dependence by gradients."""

from __future__ import annotations

import pytest
import torch

from sixfold.core.place import Sizes
from sixfold.models.build import build
from sixfold.models.paths import Paths, growth, paths, travel, work
from tests.support.architectures import KINDS, registered
from tests.support.covering import covering

ONE = Sizes(vocab=16, d_model=32, d_ff=64, heads=2, encoder_layers=1, decoder_layers=1)
TWO = Sizes(vocab=16, d_model=32, d_ff=64, heads=2, encoder_layers=2, decoder_layers=2)


def of_one_stack(modification: list[str], kind: str, length: int, sizes: Sizes = ONE) -> Paths:
    (found,) = paths(sizes, modification, kind, length).values()
    return found


@pytest.mark.parametrize("length", [4, 8])
def test_attention(length):
    """Norm, Q K V, attention, W_O, +; norm, W₁ (and relu), W₂, +; norm. The nearest way goes around feed-forward."""
    found = of_one_stack([], "encoder_only", length)
    assert found == Paths(length, chain=5 + 4 + 1, distance=5 + 1 + 1, reach=length - 1)


@pytest.mark.parametrize("length", [4, 8])
def test_rnn(length):
    """In each step W h, + U x, tanh; before the first, U x; after the last, nothing."""
    found = of_one_stack(["rnn"], "decoder_only", length)
    assert found.reach == length - 1
    assert found.distance == found.chain
    assert found.chain == of_one_stack(["rnn"], "decoder_only", 2).chain + 3 * (length - 2)


def test_the_cell_of_an_lstm_is_a_shorter_way_than_its_hidden_state():
    """c_t = f ⊙ c_{t−1} + …: two operations. By h_t: W h, + U x, σ, ⊙, +, tanh, ⊙."""
    short, long = (of_one_stack(["lstm"], "decoder_only", length) for length in (4, 8))
    assert (long.distance - short.distance, long.chain - short.chain) == (4 * 2, 4 * 7)


def test_attention_connects_source_and_target_where_a_bottleneck_does_not():
    """The encoder's last state is far from the first word; attention makes every word equally near."""
    near, far = (
        [paths(ONE, [name], "encoder_decoder", length)["source to target"].distance for length in (4, 8)]
        for name in ("bahdanau", "lstm")
    )
    assert near[0] == near[1]
    assert far[1] > far[0]


@pytest.mark.parametrize("modification", ["lightweight_convolution", "lstm"])
def test_tokens_that_are_reached_have_gradients(modification):
    """By another route: the gradient of each state with respect to each embedded token, in the whole model."""
    length, sizes = 9, TWO
    model = build(sizes, [modification], "decoder_only", seed=0).double().eval()
    embedded = []
    model.input.register_forward_hook(lambda module, given, returned: embedded.append(returned[0]))
    states = model.decode(torch.full((1, length), 15)) @ torch.randn(
        32, dtype=torch.float64
    )  # a normed sum is constant
    between = [
        i - j
        for i in range(length)
        for j, gradient in enumerate(torch.autograd.grad(states[0, i], embedded[0], retain_graph=True)[0][0])
        if gradient.abs().max() > 1e-12
    ]
    assert of_one_stack([modification], "decoder_only", length, sizes).reach == max(between)
    assert min(between) == 0


def test_work_of_attention_is_quadratic():
    """Two layers: 4 D² + 2 D F products with weights for each token, and 2 D for each pair of tokens."""
    assert work(TWO, [], "encoder_only") == {"encoder": (2 * (4 * 32**2 + 2 * 32 * 64), 2 * 2 * 32)}
    assert work(ONE, ["rnn"], "decoder_only") == {"decoder": (2 * 32**2, 0)}


def test_growth():
    assert growth([7, 7, 7]) == "constant"
    assert growth([10, 26, 58]) == "2 per token"
    assert growth([3, 5, 7]) == "2 per doubling"
    assert growth([3, 4, 9]) == "3 → 4 → 9"


def test_a_convolution_reaches_some_tokens():
    found = travel(TWO, ["lightweight_convolution"], "encoder_only")["encoder"]
    assert (found.chain, found.distance, found.reach) == ("constant", "constant", f"{found.at[0].reach} tokens")


@covering(registered(*KINDS))
def test_every_model_can_be_followed(kind, modifications):
    """Three tokens are so near that two layers connect the first with the last, whatever the layers are."""
    for way, found in paths(TWO, modifications, kind, 3).items():
        assert 1 <= found.distance <= found.chain, way
        assert found.reach == 2, way
