"""Attention of one query for each hypothesis: as it is defined, and the same to the last bit in any company."""

import math

import pytest
import torch

from sixfold.decoding.look import hide, look, steady
from sixfold.decoding.room import FINE, GRAINS, Grain, Room
from sixfold.decoding.sample import Sample
from sixfold.decoding.search import Job


def heads(sentences, several, slots, width=16):
    chance = torch.Generator().manual_seed(slots)
    q = torch.randn(sentences * several, 2, width, generator=chance)
    k, v = torch.randn(2, sentences, 2, slots, width, generator=chance).unbind(0)
    return q, k, v


@pytest.mark.parametrize("several", [1, 3])
def test_by_its_definition(several):
    """For each hypothesis and head by itself: Σ p v, p ∝ exp(q·k / √K) over what it may see."""
    q, k, v = heads(2, several, 5)
    seen = torch.rand(2, 1, several, 5, generator=torch.Generator().manual_seed(1)) < 0.6
    seen[..., 0] = True
    found = look(q, k, v, hide(seen, q.dtype, FINE)).view(2, several, 2, 16)
    for s in range(2):
        for w in range(several):
            for h in range(2):
                mine = seen[s, 0, w]
                p = (k[s, h, mine] @ q[s * several + w, h] / math.sqrt(16)).softmax(0)
                torch.testing.assert_close(found[s, w, h], p @ v[s, h, mine])


def test_what_a_grain_adds_is_hidden():
    assert hide(torch.tensor([True, False, True]), torch.float32, Grain(8, 8)).eq(0).tolist() == [
        *(True, False, True),
        *[False] * 5,
    ]


def test_whole_grains_by_hand():
    assert [Grain(8, 16).whole(n) for n in (1, 16, 17, 24, 25)] == [16, 16, 24, 24, 32]
    assert [FINE.whole(n) for n in (0, 1, 17)] == [0, 1, 17]


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("several", [1, 4])
def test_a_grain_keeps_sums_the_same_to_the_last_bit(width, several):
    grain = steady(width)
    if grain is None:
        pytest.skip("this machine multiplies otherwise, and then doubles are used")
    assert grain in GRAINS
    for used in (3, 20, 41, 300, 429):
        lengths = [grain.whole(used + more) for more in (0, 8, 30, 200)]
        q, k, v = heads(5, several, lengths[-1], width)
        found = []
        for slots in lengths:
            hiding = hide((torch.arange(slots) < used)[None, None, None], q.dtype, FINE)
            for number in (1, 2, 5):
                some = look(q[: number * several], k[:number, :, :slots], v[:number, :, :slots], hiding)
                found.append(some[:several])
        assert all(torch.equal(found[0], other) for other in found)


def test_room_of_one_long_text_is_given_back_when_many_short_ones_come():
    room = Room(torch.zeros(1, 4, 1288, 2), 1, 1288)
    room.reach(204, 4)
    assert room.states.numel() < 8 * 204 * 4 * 32 * 2


def test_clocks_never_stand_at_zero():
    """In single precision 24 of 2 · 10⁸ would, and draw a word that has hardly any probability."""
    sentence = Sample(width=1).begin(Job(limit=1))
    assert all((clock > 0).all() and clock.dtype == "float64" for _ in range(20) for clock in sentence.clocks(100_000))
