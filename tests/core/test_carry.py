"""States of fixed size per hypothesis: where they start, what changes them, and what does not."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from sixfold import Cache, build
from sixfold.core.masks import LazySight, Sight
from sixfold.core.memory import Memory
from sixfold.core.place import Place
from sixfold.core.state import SlotVisibility
from sixfold.modifications._shared.convolution import lay_out
from tests.support.small import moved_model, random_ids, seeded, small_sizes
from tests.support.stage import call_for

PLACE = Place("only", layers=1, causal=True, name="sum")


class RunningSum(nn.Module):
    """y_t = first + x_1 + … + x_t: its state is the sum so far."""

    def forward(self, x, call):
        def update(total):
            real = x if call.real is None else x.masked_fill(~call.real[..., None], 0)
            sums = total[:, None] + real.cumsum(1)
            return sums, (sums[:, -1],)

        return call.carry(PLACE, x, self.first, update)

    @staticmethod
    def first(memory):
        return (torch.zeros(1, 1),) if memory is None else (memory.sentences["total"],)


def step(cache, rows, real=None):
    """Read rows of numbers (B, L) after those before. → the sums (B, L)"""
    x = torch.tensor(rows, dtype=torch.float32)[..., None]
    real = None if real is None else torch.tensor(real, dtype=torch.bool)
    cache.begin(torch.zeros(*x.shape[:2], dtype=torch.long), real, x.shape[1])
    call = replace(call_for(x, causal=True), cache=cache, real=real, memory=cache.memory)
    sums = RunningSum()(x, call)[..., 0]
    cache.finish(x.shape[1] if real is None else real.sum(1))
    return sums.tolist()


def test_a_state_goes_on_where_it_was():
    cache = Cache(rows=2)
    assert step(cache, [[1, 2], [10, 20]]) == [[1, 3], [10, 30]]
    assert step(cache, [[4], [40]]) == [[7], [70]]


def test_padding_at_the_left_leaves_it_as_it_was():
    cache = Cache(rows=2)
    step(cache, [[1], [10]])
    assert step(cache, [[99, 2], [20, 30]], real=[[0, 1], [1, 1]]) == [[1, 3], [30, 60]]


def test_a_fork_is_a_copy_and_a_row_may_be_dropped():
    cache = Cache(rows=2)
    step(cache, [[1], [10]])
    cache = cache.select(torch.tensor([[1, 1]]))
    assert step(cache, [[1], [2]]) == [[11], [12]]


def test_a_first_state_with_a_row_for_each_hypothesis_is_refused(monkeypatch):
    """An easy mistake, `x.new_zeros(len(x), 1)`: it works until a beam has more rows than sentences."""
    monkeypatch.setattr(RunningSum, "first", lambda self, memory: (torch.zeros(4, 1),))
    assert step(Cache(rows=4), [[1], [2], [3], [4]]) == [[1], [2], [3], [4]]
    beam = Cache(rows=2).select(torch.tensor([[0, 0], [1, 1]]))
    with pytest.raises(ValueError, match=r"has one row, or one per sentence \(2 here\), .* got 4 rows"):
        step(beam, [[1], [2], [3], [4]])
    with pytest.raises(ValueError, match=r"one per sentence \(3 here\), .* got 4 rows"):
        RunningSum()(x := torch.zeros(3, 1, 1), call_for(x, causal=True))


def test_it_starts_from_the_memory_of_its_sentence_for_every_hypothesis():
    memory = Memory((torch.zeros(2, 3, 4),), None, sentences={"total": torch.tensor([[100.0], [200.0]])})
    cache = Cache(memory).select(torch.tensor([[0, 0], [1, 1]]))
    assert step(cache, [[1], [2], [3], [4]]) == [[101], [102], [203], [204]]
    cache = cache.select(torch.tensor([[2, 3]]))
    assert cache.memory.sentences["total"].tolist() == [[200]]
    assert step(cache, [[1], [1]]) == [[204], [205]]


@pytest.mark.parametrize("started", [False, True])
def test_a_row_that_joins_starts_from_its_own_memory(started):
    def memory(total):
        return Memory((torch.zeros(1, 2, 4),), None, sentences={"total": torch.tensor([[total]])})

    cache, newcomer = Cache(memory(100.0)), Cache(memory(200.0))
    step(cache, [[1]])
    if started:
        step(newcomer, [[5]])
    cache = cache.join(newcomer)
    assert step(cache, [[1], [1]]) == [[102], [206 if started else 201]]


def test_a_pass_that_was_interrupted_can_be_repeated():
    cache = Cache(rows=1)
    step(cache, [[1]])
    cache.begin(torch.zeros(1, 1, dtype=torch.long), None, 1)
    RunningSum()(torch.ones(1, 1, 1), replace(call_for(torch.ones(1, 1, 1), causal=True), cache=cache))  # and no finish
    assert step(cache, [[2]]) == [[3]]


# States that do not grow --------------------------------------------------------------------------------


def held(cache):
    """The numbers that the cache holds in states of its hypotheses."""
    growing = [tensor.states for several in cache._growing.values() for tensor in several]
    return sum(state.numel() for state in [*growing, *(s for states in cache._carried.values() for s in states)])


@torch.no_grad()
def test_a_convolution_keeps_its_window_and_not_every_token():
    model = moved_model("decoder_only", ("lightweight_convolution:widths=3",), dtype=torch.float32)
    cache, numbers = Cache(rows=2).select(torch.tensor([[0, 0], [1, 1]])), []
    for _ in range(20):
        model.decode(random_ids(4, 1, seeded(1)), cache=cache)
        numbers.append(held(cache))
        cache = cache.select(torch.tensor([[1, 0], [2, 2]]))
    assert set(numbers) == {4 * 2 * model.sizes.d_model * 2}  # rows × last tokens × width × layers
    assert cache._paths is None  # nothing is shared, so nobody counts slots


# Masks that nobody needs ----------------------------------------------------------------------------------


def test_a_mask_is_made_once_and_only_if_a_part_asks_for_it(monkeypatch):
    made = []
    among = Sight.among
    monkeypatch.setattr(Sight, "among", classmethod(lambda cls, *a, **k: made.append(1) or among(*a, **k)))
    ids = torch.tensor([[5, 6, 7], [5, 6, 0]])
    convolutions, attentions = (
        build(small_sizes(), names, "decoder_only") for names in (["lightweight_convolution"], [])
    )
    convolutions.decode(ids)
    assert not made
    attentions.decode(ids)
    assert len(made) == 1


def test_a_lazy_sight_is_made_once():
    calls = []
    sight = LazySight(lambda: calls.append(1) or Sight(causal=True))
    assert sight() is sight()
    assert calls == [1]


def test_a_beam_that_read_nothing_sees_nothing():
    seen = SlotVisibility.straight(torch.zeros(6, dtype=torch.long), 3)
    assert seen.seen.shape == (2, 3, 0)
    assert seen.used.tolist() == [0, 0]


def test_a_window_is_the_last_real_tokens():
    x = torch.arange(1.0, 4)[None, :, None]
    strip = lay_out(x, call_for(x, causal=True), PLACE, width=3)
    assert strip.reached[0, :, 0].tolist() == [0, 0, 1, 2, 3]
