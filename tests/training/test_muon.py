"""Muon's update by hand, and beside torch's own."""

import pytest
import torch

from sixfold.training.muon import Muon, orthogonal
from tests.support.small import seeded


def matrices(*shape):
    return torch.randn(shape, generator=seeded(1))


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 8, 24), (2, 24, 8)])
def test_the_update_has_the_singular_vectors_and_nearly_equal_singular_values(shape):
    given = matrices(*shape)
    found = orthogonal(given)
    u, _, vt = torch.linalg.svd(given, full_matrices=False)
    values = (u.mT @ found @ vt.mT).diagonal(dim1=-2, dim2=-1)
    assert torch.allclose(u @ torch.diag_embed(values) @ vt, found, atol=1e-4)
    relative = torch.linalg.svdvals(given) / torch.linalg.matrix_norm(given)[:, None]
    assert values[relative > 0.01].min() > 0.73 - 1e-3
    assert values.max() < 1.27 + 1e-3


def test_a_matrix_of_a_batch_gets_the_update_that_it_gets_alone():
    given = matrices(5, 6, 9)
    assert torch.allclose(orthogonal(given)[3], orthogonal(given[3:4])[0], atol=1e-6)


def test_three_steps_are_torchs():
    """torch has other polynomials, computed in bfloat16: the direction is nearly the same, and the length similar."""
    starts = [matrices(6, 6), matrices(6, 12), matrices(12, 6), matrices(6, 6) + 1]
    ours, theirs = ([torch.nn.Parameter(start.clone()) for start in starts] for _ in range(2))
    optimizers = [
        (ours, Muon([{"params": ours}], lr=0.1, weight_decay=0.5)),
        (theirs, torch.optim.Muon(theirs, lr=0.1, weight_decay=0.5, adjust_lr_fn="match_rms_adamw")),
    ]
    for seed in range(3):
        for weights, optimizer in optimizers:
            for weight in weights:
                weight.grad = torch.randn(weight.shape, generator=seeded(seed))
            optimizer.step()
    for mine, its, start in zip(ours, theirs, starts, strict=True):
        moved, expected = (each.detach() - start for each in (mine, its))
        assert torch.cosine_similarity(moved.flatten(), expected.flatten(), dim=0) > 0.99
        assert moved.norm() == pytest.approx(expected.norm().item(), rel=0.1)
