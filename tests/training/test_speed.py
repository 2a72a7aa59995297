"""The speed that the plan reckons with is measured for every width that a model may have."""

import pytest
import torch

from sixfold.training.speed import measure_speed


@pytest.mark.parametrize("width", [7, 6])
def test_a_width_that_does_not_divide_into_four_heads(width):
    assert measure_speed(width, torch.device("cpu")) > 0
