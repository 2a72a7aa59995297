"""numba's internals are as sixfold uses them; where one has changed, `numba_private.py` must be adapted."""

import importlib
import inspect
import platform

import numba
import numpy as np
import pytest
import torch
from numba.core import caching
from numba.core.registry import cpu_target

from sixfold.decoding.cpu import gemm, kernels, numba_private
from sixfold.decoding.cpu.layers import Buffer, Scratch, map_of
from sixfold.decoding.cpu.numba_private import cpu_features, keep_on_disk, multiplies_and_adds

ADAPT = f"numba {numba.__version__} has changed: adapt sixfold's numba_private.py"


@pytest.fixture
def anew():
    """Answers that are remembered are asked for again, before and after a test."""
    for function in (cpu_features, multiplies_and_adds):
        function.cache_clear()
    yield
    for function in (cpu_features, multiplies_and_adds):
        function.cache_clear()


def test_the_features_of_a_cpu_are_a_list_of_names_with_signs():
    features = cpu_target.target_context.codegen()._tm_features
    assert isinstance(features, str), ADAPT
    assert all(name[0] in "+-" for name in features.split(",") if name), ADAPT
    assert {f"+{name}" for name in cpu_features()} <= set(features.split(",")), ADAPT
    assert cpu_features(), ADAPT


def test_an_intrinsic_without_a_result_has_a_dummy_value():
    assert list(inspect.signature(cpu_target.target_context.get_dummy_value).parameters) == [], ADAPT


def test_a_cache_has_a_stamp_and_three_verbs():
    cache = caching.FunctionCache(lambda x: x)
    assert hasattr(cache._cache_file, "_source_stamp"), ADAPT
    for verb in ("load_overload", "save_overload", "flush"):
        assert callable(getattr(cache, verb)), ADAPT
    assert kernels.top._cache.load_overload.__module__ == numba_private.__name__, f"kernels are not cached: {ADAPT}"


@pytest.fixture
def twice(tmp_path, monkeypatch):
    """A function in a file of its own → how often a kernel of it was found on disk, at each call a new one."""
    (tmp_path / "twice.py").write_text("def twice(x):\n    return 2 * x\n")
    (tmp_path / "part.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    def hits():
        function = importlib.reload(importlib.import_module("twice")).twice
        kernel = keep_on_disk(numba.njit(function), [str(tmp_path / "part.py")])
        assert kernel(3) == 6
        return sum(kernel.stats.cache_hits.values())

    return hits


def test_a_kernel_is_compiled_again_when_a_file_it_has_parts_of_changes(twice, tmp_path):
    assert [twice(), twice()] == [0, 1], ADAPT
    (tmp_path / "part.py").write_text("# changed")
    numba_private._stamp.cache_clear()
    assert [twice(), twice()] == [0, 1], ADAPT


class Other:
    """A cache with other names."""

    def __init__(self, function):
        pass


@pytest.mark.parametrize("change", ["it is gone", "it has other names"])
def test_without_numbas_cache_kernels_are_compiled_in_each_process(change, twice, monkeypatch):
    monkeypatch.setattr(caching, "FunctionCache", Other)
    if change == "it is gone":
        monkeypatch.delattr(caching, "FunctionCache")
    assert [twice(), twice()] == [0, 0]


def test_without_known_features_torch_multiplies(anew, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.delattr(cpu_target.target_context.codegen(), "_tm_features")
    assert cpu_features() == frozenset()
    assert gemm.panels(np.zeros((2, 2), np.float32)) is None
    assert gemm.int8_panels(np.zeros((2, 2), np.int8)) is None
    scratch, linear = Scratch(), torch.nn.Linear(3, 5)
    scratch.clear(4)
    x, y = Buffer.of(torch.randn(4, 3)), Buffer.of(torch.empty(4, 5))
    map_of(linear, scratch)(x, y)
    torch.testing.assert_close(y.tensor, linear(x.tensor).detach())
