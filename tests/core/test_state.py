"""What the cache does beyond the contract that every modification keeps (tests/modifications/test_contract.py)."""

import pytest
import torch

from sixfold import BOS, EOS, Cache
from sixfold.core.growing_tensor import SPARE
from sixfold.decoding.step import padded
from tests.support.small import assert_close, moved_model, random_ids, seeded

SOURCES = [[5, 9, 7, 11, 8, EOS], [8, EOS], [6, 4, EOS], [9, 8, EOS]]


def memory_of(model, sources=SOURCES):
    return model.encode(padded(sources, torch.device("cpu")))


@torch.no_grad()
def test_more_tokens_than_there_were_spare_slots_for():
    model, ids = moved_model(), random_ids(4, 2 * SPARE + 5, seeded(1))
    cache = Cache(memory_of(model))
    states = [model.decode(ids[:, i : i + 1], cache=cache) for i in range(ids.shape[1])]
    assert_close(torch.cat(states, 1), model.decode(ids, memory_of(model)))


def test_a_gradient_goes_back_through_every_step():
    model, ids = moved_model(), random_ids(4, 4, seeded(2))

    def gradients(states):
        model.zero_grad()
        states.square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    cache, states = Cache(memory_of(model)), []
    for i in range(4):
        states.append(model.decode(ids[:, i : i + 1], cache=cache))
        cache = cache.select(torch.arange(4))
    whole = gradients(model.decode(ids, memory_of(model)))
    for stepwise, expected in zip(gradients(torch.cat(states, 1)), whole, strict=True):
        assert_close(stepwise, expected)


def test_steps_without_a_gradient_leave_those_with_one_as_they_were():
    model, ids = moved_model(), random_ids(4, 4, seeded(3))

    def gradients(go_on):
        cache = Cache(memory_of(model))
        states = model.decode(ids[:, :3], cache=cache)
        if go_on:
            with torch.no_grad():
                model.decode(ids[:, 3:], cache=cache)
        model.zero_grad()
        states.square().sum().backward()  # torch says if something was written over
        return [p.grad.clone() for p in model.parameters()]

    assert all(torch.equal(*pair) for pair in zip(gradients(True), gradients(False), strict=True))


def test_a_cache_from_inference_mode_goes_on_outside_it():
    model, ids = moved_model(), random_ids(4, 4, seeded(4))
    with torch.inference_mode():
        cache = Cache(memory_of(model))
        model.decode(ids[:, :2], cache=cache)
    with torch.no_grad():
        states = [model.decode(ids[:, i : i + 1], cache=cache) for i in (2, 3)]
        assert_close(torch.cat(states, 1), model.decode(ids, memory_of(model))[:, 2:])


@torch.no_grad()
def test_a_memory_is_no_longer_than_the_longest_that_is_left():
    model = moved_model()
    cache = Cache(memory_of(model))
    model.decode(torch.full((4, 1), BOS), cache=cache)
    left = cache.select(torch.tensor([3, 1]))
    assert left.memory.states[0].shape[1] == 3
    assert left.memory.real.tolist() == [[True, True, True], [True, True, False]]
    equal = cache.select(torch.tensor([2, 3]))
    assert equal.memory.real is None  # nothing is padding any more
    ids = random_ids(2, 1, seeded(5))
    for chosen, rows in ((left, (3, 1)), (equal, (2, 3))):
        both = torch.cat([torch.full((2, 1), BOS), ids], 1)
        expected = model.decode(both, memory_of(model, [SOURCES[row] for row in rows]))[:, 1:]
        assert_close(model.decode(ids, cache=chosen), expected)


@torch.no_grad()
def test_slots_that_were_never_written_do_no_harm(monkeypatch):
    """A row's empty slots lie in memory that may hold anything."""
    model, ids = moved_model(), random_ids(3, 4, seeded(6))
    empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))
    cache = Cache(memory_of(model, SOURCES[:2]))
    model.decode(ids[:2, :2], cache=cache)
    cache = cache.join(Cache(memory_of(model, SOURCES[2:3]))).select(torch.arange(3))
    states = torch.cat([model.decode(ids[:, i : i + 1], cache=cache) for i in range(4)], 1)
    assert_close(states[2], model.decode(ids[2:], memory_of(model, SOURCES[2:3]))[0])


@pytest.mark.parametrize("width", [1, 2])
@torch.no_grad()
def test_what_is_refused_leaves_no_trace(width):
    """More tokens than the model can tell apart, and then not so many."""
    model, ids = moved_model(modifications=("learned_positions:length=6",)), random_ids(4 * width, 9, seeded(9))
    rows = torch.arange(4)[:, None].expand(4, width)
    cache, untouched = (Cache(memory_of(model)).select(rows) for _ in range(2))
    for each in (cache, untouched):
        model.decode(ids[:, :2], cache=each)
    with pytest.raises(ValueError, match="11 positions, but this model has learned only 6"):
        model.decode(ids, cache=cache)
    for i in (2, 3, 4):
        new = ids[:, i : i + 1]
        assert torch.equal(model.decode(new, cache=cache), model.decode(new, cache=untouched))
    assert cache.lengths.tolist() == [5] * 4 * width


@torch.no_grad()
def test_newcomers_take_the_places_of_those_who_are_done():
    """The first in a place of another length, the second after all; a memory that is longer than all before."""
    model, ids = moved_model(), random_ids(4, 5, seeded(7))
    cache = Cache(memory_of(model, SOURCES[1:4]))
    model.decode(ids[:3, :2], cache=cache)
    newcomers = Cache(memory_of(model, SOURCES[:2]))
    cache = cache.join(newcomers, free=[1])
    assert cache.lengths.tolist() == [2, 0, 2, 0]
    states = torch.cat([model.decode(ids[:, i : i + 1], cache=cache) for i in (2, 3, 4)], 1)
    for place, source, read in ((0, 1, 0), (1, 0, 2), (2, 3, 0), (3, 1, 2)):
        alone = model.decode(ids[place : place + 1, read:], memory_of(model, [SOURCES[source]]))
        assert_close(states[place], alone[0, -3:])


@torch.no_grad()
def test_beams_that_join_in_the_places_of_others_see_their_own_past():
    model, ids = moved_model(), random_ids(4, 4, seeded(8))
    cache = Cache(memory_of(model, SOURCES[:2])).select(torch.tensor([[0, 0], [1, 1]]))
    model.decode(ids[:, :1], cache=cache)
    cache = cache.select(torch.tensor([[1, 1], [3, 2]]))
    model.decode(ids[:, 1:2], cache=cache)
    cache = cache.join(Cache(memory_of(model, SOURCES[2:3])).select(torch.tensor([[0, 0]])), free=[0])
    states = model.decode(ids[:, 2:3], cache=cache)
    cache = cache.select(torch.tensor([[1, 0], [2, 2]]))
    states = model.decode(ids[:, 3:], cache=cache)[:, 0]
    new, old = (memory_of(model, [SOURCES[place]]) for place in (2, 1))
    for row, (memory, read) in enumerate(
        (
            (new, [ids[1, 2], ids[0, 3]]),
            (new, [ids[0, 2], ids[1, 3]]),
            (old, [ids[3, 0], ids[2, 1], ids[2, 2], ids[2, 3]]),
            (old, [ids[3, 0], ids[2, 1], ids[2, 2], ids[3, 3]]),
        )
    ):
        assert_close(states[row], model.decode(torch.stack(read)[None], memory)[0, -1])
