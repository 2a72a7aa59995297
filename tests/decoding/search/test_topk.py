"""The best words by stretches are the best words."""

import pytest
import torch

from sixfold.decoding.cpu.kernels import _BLOCK as BLOCK
from sixfold.decoding.search.topk import top


@pytest.mark.parametrize("words", [1, 7, 1024, 1025, 8000])
@pytest.mark.parametrize("k", [1, 4, 40])
def test_the_same_as_by_sorting_everything(words, k):
    scores = torch.randperm(6 * words, generator=torch.Generator().manual_seed(1)).view(2, 3, words).float()
    k = min(k, words)
    values, indices = top(scores, k)
    expected = scores.sort(descending=True)
    assert torch.equal(values, expected.values[..., :k])
    assert torch.equal(indices, expected.indices[..., :k])


def test_several_of_one_stretch():
    scores = torch.zeros(1, 2000)
    scores[0, [5, 6, 7, 1999]] = torch.tensor([2.0, 4.0, 3.0, 1.0])
    assert top(scores, 4).indices.tolist() == [[6, 7, 5, 1999]]


def test_the_first_of_equals():
    scores = torch.zeros(1, 20 * BLOCK)
    scores[0, [3 * BLOCK + 5, 3 * BLOCK + 9, 7 * BLOCK]] = 1.0
    assert top(scores, 1).indices.tolist() == [[3 * BLOCK + 5]]


def test_forbidden_words_come_last_and_filling_never():
    scores = torch.full((1, 2000), -torch.inf)  # not a whole number of stretches
    scores[0, 1990] = -5.0
    values, indices = top(scores, 30)
    assert values.tolist() == [[-5.0, *[-torch.inf] * 29]]
    assert indices[0, 0] == 1990
    assert indices.max() < 2000
