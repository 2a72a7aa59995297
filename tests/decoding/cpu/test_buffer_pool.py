"""Buffers are leased and given back: one in use is never handed out, and a search returns what it took."""

import sys
from itertools import combinations
from random import Random

import numpy as np
import pytest
import torch

from sixfold import EOS
from sixfold.decoding.cpu import kv_store
from sixfold.decoding.cpu.int8 import quantised
from sixfold.decoding.cpu.kv_store import BufferPool
from sixfold.decoding.cpu.step import FusedStep
from sixfold.decoding.engine import Job, search
from sixfold.decoding.ensemble import Ensemble
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from tests.support.small import moved_model

METHODS = pytest.mark.parametrize("method", [Greedy(), Beam(3)], ids=["greedy", "beam"])


class Counting(BufferPool):
    """A pool that knows which leases have not ended."""

    def __init__(self):
        super().__init__()
        self.open, self.taken, self.most = [], [], 0

    def lease(self, shape, dtype):
        lease = super().lease(shape, dtype)
        self.open.append(lease)
        self.taken.append(id(lease._buffer))
        self.most = max(self.most, sum(len(each._buffer) for each in self.open))
        return lease

    def give_back(self, lease):
        self.open = [each for each in self.open if each is not lease]
        super().give_back(lease)

    @property
    def idle(self):
        return sum(map(len, self._idle))


@pytest.fixture
def all_are_kept(monkeypatch):
    monkeypatch.setattr(kv_store, "_SMALLEST", 0)


def counting(int8=False):
    model = moved_model(vocab=12, dtype=torch.float32)
    step = FusedStep(quantised(model) if int8 else model)
    step.pool = Counting()
    return step


def jobs(*lengths, limit=9):
    return [Job(source=[*([5, 7, 9, 4] * n)[:n], EOS], limit=limit) for n in lengths]


@torch.inference_mode()
def searched(step, method, *lengths, batch_tokens=200):
    return [found for _, found in search(step, jobs(*lengths), method, batch_tokens=batch_tokens)]


@pytest.mark.parametrize("seed", range(3))
def test_two_leases_never_overlap(seed, all_are_kept, monkeypatch):
    monkeypatch.setattr(sys, "getrefcount", lambda _: 0)  # whatever counts say
    chance, pool, held = Random(seed), BufferPool(), {}
    for number in range(300):
        if held and chance.random() < 0.45:
            pool.give_back(held.pop(chance.choice(list(held))))
        else:
            shape, dtype = (chance.randrange(1, 5), chance.randrange(1, 90)), chance.choice(["f4", "i1", "i8"])
            held[number] = pool.lease(shape, dtype)
            held[number].array[:] = number % 128
        assert all((lease.array == number % 128).all() for number, lease in held.items())
    assert not any(np.shares_memory(one.array, other.array) for one, other in combinations(held.values(), 2))


def test_memory_is_reused_when_it_was_given_back_and_fits(monkeypatch):
    monkeypatch.setattr(kv_store, "_SMALLEST", 64)
    monkeypatch.setattr(kv_store, "_MOST_IDLE", 2000)
    pool = BufferPool()
    first = pool.lease((10, 10), np.float32)
    memory = first.array
    where = memory.ctypes.data
    del memory
    assert pool.lease((100,), np.int32).array.ctypes.data != where, "it was not given back"
    pool.give_back(first)
    assert pool.lease((99,), np.int8).array.ctypes.data != where, "it is more than 4 times too large"
    again = pool.lease((300,), np.int8)
    assert (again.array.ctypes.data, again.array.shape, again.array.dtype) == (where, (300,), np.int8)
    for lease in [again, *(pool.lease((size,), np.int8) for size in (1700, 1800, 1900))]:
        pool.give_back(lease)
    pool.lease((9000,), np.int8)  # new memory: the oldest idle ones go
    assert [len(buffer) for buffer in pool._idle] == [1900]


def test_a_lease_ends_once_and_has_no_array_then():
    pool = BufferPool()
    lease = pool.lease((3, 4), np.float32)
    pool.give_back(lease)
    assert lease.array.size == 0
    with pytest.raises(AssertionError, match="given back again"):
        pool.give_back(lease)


@METHODS
@pytest.mark.parametrize("int8", [False, True])
def test_a_search_gives_back_all_it_took_and_the_next_one_takes_it(method, int8, all_are_kept):
    step, lengths = counting(int8), [3, 8, 1, 12, 5, 2, 7, 9, 4] * 3
    first = searched(step, method, *lengths)
    assert step.pool.open == []
    taken, step.pool.taken = set(step.pool.taken), []
    assert searched(step, method, *lengths) == first
    assert step.pool.open == []
    assert set(step.pool.taken) <= taken, "memory was allocated again"


def test_members_of_an_ensemble_give_theirs_back(all_are_kept):
    steps = [counting(), counting()]
    searched(Ensemble(steps), Beam(2), 3, 8, 1)
    assert [step.pool.open for step in steps] == [[], []]
    assert all(step.pool.idle for step in steps)


@METHODS
def test_memory_is_bounded_over_many_searches(method, all_are_kept, monkeypatch):
    monkeypatch.setattr(kv_store, "_MOST_IDLE", most_idle := 1 << 16)
    step, chance = counting(), Random(1)
    for _ in range(12):
        lengths = [chance.choice([1, 2, 3, 4, 30]) for _ in range(chance.randrange(1, 20))]
        searched(step, method, *lengths, batch_tokens=chance.choice([1, 40, 400]))
        assert step.pool.idle <= step.pool.most + most_idle
    assert step.pool.open == []


@METHODS
@torch.inference_mode()
def test_buffers_of_a_search_that_fails_are_lost_and_not_handed_out(method, all_are_kept):
    step = counting()
    running = search(step, jobs(3, 8, 1, 5), method, batch_tokens=1)  # one sentence after the other
    next(running)
    step.input.words = 0  # no id is known any more
    with pytest.raises(ValueError, match="vocabulary has 0 words"):
        list(running)
    step.input.words = 12
    lost, step.pool.open = [lease.array for lease in step.pool.open], []
    assert lost
    for array in lost:
        array.fill(7)
    searched(step, method, 3, 8, 1, 12, 5)
    assert step.pool.open == []
    assert all((array == 7).all() for array in lost)
