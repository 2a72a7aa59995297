"""R-Drop: two passes that differ by their dropout should predict the same."""

import math

import pytest
import torch

from sixfold import Sizes, build
from sixfold.core.batch import Batch
from sixfold.core.loss import divergence
from sixfold.runs.run import Run
from sixfold.tasks.task import find_task
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import train
from tests.support import tiny

SIZES = Sizes(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1, vocab=20, dropout=0.0)


def batch():
    ids = torch.randint(5, 20, (3, 4), generator=torch.Generator().manual_seed(3))
    return Batch(source=ids, inputs=ids, targets=ids, counts={"words": 12})


def terms(model, weight, name="translation"):
    return find_task(name).with_options({"r_drop": weight}).terms(model, batch(), smoothing=0.1)


def gradient(model, weight):
    model.zero_grad()
    terms(model, weight)["words"].sum.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_the_divergence_of_two_coins():
    """KL(p‖q) + KL(q‖p) = (0.9 − 0.5)·ln(0.9/0.5) + (0.1 − 0.5)·ln(0.1/0.5)"""
    p, q = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.5, 0.5]]).log()
    by_hand = 0.4 * math.log(1.8) + 0.4 * math.log(5)
    assert divergence(p, q, torch.tensor([2.0])).item() == pytest.approx(2 * by_hand / 2)
    assert divergence(p, q, torch.tensor([0.0])).item() == 0


def test_without_dropout_it_changes_nothing():
    model = build(SIZES, seed=1).double().train()
    torch.testing.assert_close(gradient(model, 3.0), gradient(model, 0.0))
    assert terms(model, 3.0)["words"].shown.item() == pytest.approx(terms(model, 0.0)["words"].shown.item())


def test_with_dropout_the_loss_is_that_of_two_passes_and_their_distance():
    model = build(Sizes(**{**vars(SIZES), "dropout": 0.3}), seed=1).double().train()
    twice = Batch(**{name: torch.cat([t, t]) for name, t in batch().fields.items()})
    torch.manual_seed(5)
    found = terms(model, 4.0)["words"]
    torch.manual_seed(5)
    x, other = model.read(twice).x.chunk(2)
    scored = [model.score_words(each, batch(), 0.1).sum for each in (x, other)]
    p, q = (model.log_probs(each) for each in (x, other))
    apart = sum((a.exp() * (a - b)).sum() for a, b in ((p, q), (q, p)))
    torch.testing.assert_close(found.sum, sum(scored) / 2 + 4.0 / 4 * apart)
    assert apart > 0


def test_a_model_in_evaluation_makes_one_pass():
    model = build(Sizes(**{**vars(SIZES), "dropout": 0.3}), seed=1).eval()
    assert terms(model, 5.0)["words"].sum.item() == terms(model, 0.0)["words"].sum.item()


def test_a_run_trains_with_it_and_keeps_it(tmp_path):
    config = tiny.short(tiny.corpus(tmp_path)).model_copy(update={"task": "translation:r_drop=2"})
    train(config, tmp_path / "run", display=Quiet())
    assert Run(tmp_path / "run").read_config().task == {"name": "translation", "r_drop": 2.0}


@pytest.mark.parametrize("value", ["-1", "101", "nan"])
def test_its_weight_has_bounds(value):
    with pytest.raises(ValueError, match="r_drop"):
        find_task("translation").with_options({"r_drop": value})
