"""torch's internals are as sixfold uses them; where one has changed, `torch_private.py` must be adapted."""

import pytest
import torch
from torch import nn

from sixfold.decoding.cpu import torch_private
from sixfold.decoding.cpu.int8 import Matrix, largest_weight
from sixfold.decoding.cpu.torch_private import (
    Unconverted,
    change_count,
    hooks,
    int8_product,
    pack,
    packed_product,
)
from tests.support.small import seeded

ADAPT = f"torch {torch.__version__} has changed: adapt sixfold's torch_private.py"


def integers(*shape, most=127, seed=1):
    return torch.randint(-most, most + 1, shape, generator=seeded(seed)).to(torch.int8)


def exact(x, weight):
    return x.long() @ weight.long()


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 2, 1), (3, 5, 7), (40, 33, 12), (70, 64, 100)])
def test_products_of_int8_are_exact_in_both_memory_layouts(rows, inputs, outputs):
    x, weight = integers(rows, inputs), integers(inputs, outputs, most=largest_weight(), seed=2)
    out = torch.empty(rows, outputs, dtype=torch.int32)
    for laid_out in (weight, weight.t().contiguous().t()):
        assert torch.equal(int8_product(x, laid_out).long(), exact(x, weight)), ADAPT
        assert int8_product(x, laid_out, out=out) is out, ADAPT
        assert torch.equal(out.long(), exact(x, weight)), ADAPT


def test_torch_has_a_product_of_int8():
    assert torch._int_mm(integers(3, 5), integers(5, 4)).dtype == torch.int32, ADAPT


def test_without_it_the_product_is_that_of_float64(monkeypatch):
    monkeypatch.delattr(torch, "_int_mm")
    x, weight, out = integers(4, 2000), integers(2000, 6), torch.empty(4, 6, dtype=torch.int32)
    assert torch.equal(int8_product(x, weight).long(), exact(x, weight))
    assert torch.equal(int8_product(x, weight, out=out).long(), exact(x, weight))


@pytest.mark.skipif("onednn" not in torch.backends.quantized.supported_engines, reason="this torch has no oneDNN")
def test_packed_products_are_scaled_sums():
    x, weight = integers(9, 40), integers(16, 40, most=largest_weight(), seed=2)
    scale, zeros = torch.linspace(0.5, 2, 16), torch.zeros(16, dtype=torch.long)
    packed = pack(weight)
    assert packed is not None, ADAPT
    expected = exact(x, weight.t()).float() * scale
    assert torch.equal(packed_product(x.clone(), packed, scale, zeros), expected), ADAPT


def test_without_packed_products_results_are_the_same(monkeypatch):
    weight, x = torch.randn(300, 48, generator=seeded(3)), torch.randn(500, 48, generator=seeded(4))
    packed = Matrix(weight)(x)
    monkeypatch.setattr(torch_private.torch, "ops", object())
    assert pack(integers(4, 4)) is None
    assert torch.equal(Matrix(weight)(x), packed)


def test_torch_counts_changes_in_place_but_not_of_inference_tensors():
    tensor = torch.zeros(3)
    before = change_count(tensor)
    tensor.add_(1)
    assert change_count(tensor) == before + 1, ADAPT
    with torch.inference_mode():
        assert change_count(torch.zeros(3)) is None, ADAPT


def test_hooks_of_a_module_are_found():
    module = nn.Linear(2, 2)
    assert hooks(module) == [], ADAPT
    module.register_forward_hook(lambda *_: None)
    module.register_forward_pre_hook(lambda *_: None)
    assert len(hooks(module)) == 2, ADAPT


def test_a_module_that_is_not_converted():
    class Fixed(Unconverted, nn.Linear):
        pass

    model = nn.Sequential(Fixed(2, 2), nn.Linear(2, 2)).double()
    assert [part.weight.dtype for part in model] == [torch.float32, torch.float64], ADAPT


def test_tensors_are_those_of_the_public_iterators():
    module = nn.Module()
    module.a, module.b, module.none = nn.Linear(2, 3), nn.Linear(2, 3, bias=False), None
    module.weight = nn.Parameter(torch.zeros(2))
    module.register_buffer("buffer", torch.ones(3))
    module.register_parameter("missing", None)
    public = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    assert [id(each) for each in torch_private.tensors(module)] == [id(each) for each in public]
