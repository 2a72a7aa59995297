"""Where a model computes, and how exactly."""

import os

import pytest
import torch

from sixfold.core.device import be_deterministic


@pytest.mark.parametrize(("before", "after"), [(None, ":4096:8"), (":16:8", ":16:8")])
def test_cuda_is_asked_for_the_same_numbers_unless_somebody_chose_how(monkeypatch, before, after):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if before is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", before)
    was = torch.are_deterministic_algorithms_enabled()
    try:
        be_deterministic(True)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == after
    finally:
        torch.use_deterministic_algorithms(was)
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
