"""The training section: what is counted, by hand, and that all contenders do the same."""

import pytest
import torch

from sixfold import Batch
from sixfold.bench import peer_models as peers
from sixfold.bench.options import BenchOptions
from sixfold.bench.race import OURS, Ratio
from sixfold.bench.training import PEAK, first_steps, flops, measure, notes, product, share, tables
from sixfold.bench.training_contenders import ours, peer, tokens
from sixfold.runs.model_files import skeleton
from tests.support.small import seeded
from tests.support.subjects import recipe


def quietly(_):
    pass


def test_tokens_are_the_targets_that_are_scored():
    assert tokens([[Batch(counts={"words": 5})], [Batch(counts={"words": 2})]]) == 5 + 2


def test_operations_are_those_of_the_formula():
    d, f, words, layers, n, length, rows = 16, 32, 40, 2, 7, 5, 3
    attention = n * d * 3 * d + 2 * n * n * d + n * d * d
    encoder = layers * (attention + 2 * n * d * f)
    self_attention = length * d * 3 * d + 2 * length * length * d + length * d * d
    cross = length * d * d + n * d * 2 * d + 2 * length * n * d + length * d * d
    decoder = self_attention + cross + 2 * length * d * f
    head = length * d * words
    one = torch.ones(rows, n, dtype=torch.long), *torch.ones(2, rows, length, dtype=torch.long)
    with recipe() as subject:
        model = skeleton(subject.run.directory)
        assert flops(model, [[Batch(*one)]]) == 3 * 2 * rows * (encoder + decoder + head)
        assert flops(model, [[Batch(*one), Batch(*one)], [Batch(*one)]]) == 3 * flops(model, [[Batch(*one)]])


def test_the_share_of_the_peak_is_worked_out_in_each_round():
    assert share(100, [2.0, 4.0, 2.0], [200.0, 100.0, 200.0]) == Ratio(0.25, 0.25, 0.25)  # 50 of 200, and 25 of 100
    assert product(8)() > 0


def test_batches_are_those_of_the_run():
    with recipe(training__accumulate="2") as subject:
        (first, *_) = steps = first_steps(subject, 3)
        assert len(steps) == 3
        assert len(first) >= 2
        assert 40 < tokens(steps[:1]) <= 100  # the budget; padding and the longer side count against it
        assert "random words" in subject.text


def test_our_step_is_the_trainers_and_learns():
    with recipe(training__warmup="0", training__learning_rate="0.01") as subject:
        steps = first_steps(subject, 2)
        before = [p.clone() for p in subject.model.parameters()]
        learner = ours(subject, steps)
        losses = [learner.contender.step() for _ in range(8)]
        assert losses[-1] < losses[0] - 0.5
        assert all(torch.equal(a, b) for a, b in zip(before, subject.model.parameters(), strict=True))
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("modify", [(), ("post_norm",)])
def test_transformers_has_the_same_weights_and_the_same_loss(modify):
    pytest.importorskip("transformers")
    with recipe(modify) as subject:
        with torch.no_grad():
            for parameter in subject.model.parameters():  # biases begin as zeros
                parameter += 0.1 * torch.randn(parameter.shape, generator=seeded(1))
        steps = first_steps(subject, 1)
        theirs = peer("transformers", subject, steps)
        assert theirs.same == "weights"
        assert theirs.contender.step() == pytest.approx(ours(subject, steps).contender.step(), rel=1e-5)


def test_a_peer_with_other_parts_has_the_same_sizes():
    pytest.importorskip("transformers")
    with recipe(("rotary",)) as subject:
        assert peer("transformers", subject, first_steps(subject, 1)).same == "sizes"


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder_only", "encoder_only"])
def test_x_transformers_has_about_as_many_parameters(kind):
    pytest.importorskip("x_transformers")
    with recipe(model__kind=kind) as subject:
        steps = first_steps(subject, 1)
        theirs, mine = peer("x-transformers", subject, steps).contender, ours(subject, steps).contender
        assert theirs.parameters == pytest.approx(mine.parameters, rel=0.05)
        assert theirs.step() == pytest.approx(mine.step(), rel=0.5)  # about ln V


def test_who_is_not_installed_is_named(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(peers, "_library", missing)
    wishes = BenchOptions(peers=["ctranslate2", "transformers", "x-transformers"], rounds=1, steps=2)
    with recipe() as subject:
        found = measure(subject, wishes, 1.0, quietly)
    assert list(found["contenders"]) == [OURS]
    assert "pip install -c constraints.txt -e '.[bench]'" in found["left_out"]["transformers"]
    assert set(found["left_out"]) == set(wishes.peers)


def test_the_section_says_all_of_it():
    with recipe() as subject:
        found = measure(subject, BenchOptions(rounds=2, steps=3), 60.0, quietly)
        expected = tokens(first_steps(subject, found["steps"]))
    mine = found["contenders"][OURS]
    assert found["target_tokens"] == expected
    assert found["rounds"] == len(mine["seconds_by_round"]) == 2
    assert found["peak_flop_per_second"] > 0
    assert PEAK not in found["contenders"]
    seconds = sorted(mine["seconds_by_round"])
    assert mine["target_tokens_per_second"] == pytest.approx(expected / (sum(seconds) / 2))
    ((head, rows),) = tables(found)
    assert {len(head)} == {len(row) for row in rows}
    assert any("padding" in note for note in notes(found))
