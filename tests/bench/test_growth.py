"""The length section: exponents by hand, memory of a tensor whose size is known, limits that are kept to."""

import subprocess
import sys

import pytest

from sixfold.bench import growth, memory
from sixfold.bench.growth import exponent, measure, notes, tables
from sixfold.bench.options import BenchOptions
from tests.support.subjects import recipe


def quietly(_):
    pass


def test_the_exponent_of_a_doubled_length():
    assert exponent([4.0, 8.0, 4.0], [1.0, 2.0, 1.0]) == (2, 2, 2)
    assert exponent([2.0], [1.0]) == (1, None, None)  # of one round there is no interval


HOLDING = """
import torch
from sixfold.bench import memory
held, size = [], 64 << 20
memory.rise(lambda: torch.ones(10).sum(), memory.resident())
print(memory.rise(lambda: held.append(torch.ones(size // 4)), memory.resident()))
print(memory.rise(lambda: torch.ones(size // 4).sum(), memory.resident()))
"""


def test_memory_rises_by_what_is_held():
    """In a process of its own, as it is used: one that has done much before may have room left."""
    found = subprocess.run([sys.executable, "-c", HOLDING], capture_output=True, text=True, check=True)
    held, gone = map(int, found.stdout.split())
    assert held == pytest.approx(64 << 20, rel=0.1)
    assert gone == pytest.approx(64 << 20, rel=0.1)  # a peak, and no longer there


def test_what_would_not_fit_is_left_out(monkeypatch):
    monkeypatch.setattr(memory, "rise", lambda act, before: act() or 100)
    monkeypatch.setattr(memory, "available", lambda: 1000)
    found = list(memory.measured(lambda _: 1000 if _ == 2 else 100, [1, 2, 4], 10.0))
    assert found[0]["bytes"] == 100
    assert found[1]["bytes"] == 1000
    assert "memory" in found[2]["left_out"]
    assert "too long" in next(memory.measured(lambda _: 1, [1, 2], -1.0))["left_out"]


def test_the_section_says_all_of_it(monkeypatch):
    monkeypatch.setattr(growth, "LENGTHS", (8, 16))
    with recipe() as subject:
        found = measure(subject, BenchOptions(rounds=2, peers=["ctranslate2"]), 60.0, quietly)
    keys = [(cell["who"], cell["way"], cell["length"]) for cell in found["cells"]]
    assert sorted(keys) == [("sixfold", way, n) for way in growth.WAYS for n in (8, 16)]
    assert [cell["growth"] is None for cell in found["cells"]] == [n == 8 for _, _, n in keys]
    assert all(cell["ratio"]["median"] == 1 for cell in found["cells"])
    assert "ctranslate2" in found["left_out"]
    ((head, rows),) = tables(found)
    assert {len(head)} == {len(row) for row in rows}
    assert notes(found)


def test_lengths_beyond_what_a_model_tells_apart_are_named():
    with recipe(("learned_positions:length=600",)) as subject:
        lengths, missing = growth._possible(subject.model)
    assert lengths == [256, 512]
    assert "1,024: this model reads at most 600 tokens" in missing


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder_only", "encoder_only"])
def test_gradients_are_dropped_and_the_mode_is_back(kind):
    with recipe(model__kind=kind) as subject:
        growth._times(subject.model, [("sixfold", way, 8) for way in growth.WAYS], 1, 0.0)
        assert not subject.model.training
        assert all(p.grad is None for p in subject.model.parameters())
