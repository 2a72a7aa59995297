"""Residual connections: what stands before and after a sub-layer; and those that are written as one function."""

from pathlib import Path

import pytest
import torch

import sixfold
from sixfold.core.place import Sizes
from sixfold.modifications.fixup import FixupResidual
from sixfold.modifications.post_norm import PostNorm
from sixfold.modifications.rezero import ReZero
from sixfold.modifications.rezero_layer_norm import NormedReZero
from sixfold.modifications.universal_study import GatedResidual
from sixfold.spec import registry
from sixfold.spec.spec import Spec
from sixfold.transformer import PreNorm
from tests.support.small import assert_close, random_ids, seeded, small_model

OLD_PARTS = Path(__file__).parents[1] / "data" / "legacy" / "my_parts.py"  # its residual has `forward` only

FORMULAS = {
    PreNorm: lambda r, x, f: x + f(r.norm(x)),
    PostNorm: lambda r, x, f: r.norm(x + f(x)),
    ReZero: lambda r, x, f: x + r.alpha * f(x),
    NormedReZero: lambda r, x, f: x + r.alpha * f(r.norm(x)),
    FixupResidual: lambda r, x, f: x + r.scale * f(x + r.shift),
}


@pytest.mark.parametrize("kind", [*FORMULAS, GatedResidual])
@torch.no_grad()
def test_it_is_what_comes_before_the_sub_layer_and_after(kind):
    spec = Spec(sizes=Sizes(vocab=8, d_model=6, heads=2, dropout=0.0))
    residual, x = kind(spec, spec.place("encoder")), torch.randn(2, 3, 6, generator=seeded(1))
    for p in residual.parameters():
        p.uniform_(0.5, 1.5, generator=seeded(2))
    matrix = torch.randn(6, 6, generator=seeded(3))
    whole = residual(x, lambda y, call: y @ matrix, None)
    assert_close(residual.after(x, residual.before(x) @ matrix), whole)
    if kind in FORMULAS:
        assert_close(FORMULAS[kind](residual, x, lambda y: y @ matrix), whole)


@pytest.fixture
def old_parts(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry.all_modifications()))
    sixfold.import_file(OLD_PARTS)


@pytest.mark.usefixtures("old_parts")
@torch.no_grad()
def test_one_that_is_written_as_one_function_works_in_the_plain_layers():
    """The example of the documentation of 0.1.0. With gains of 1 it is the plain Transformer."""
    plain, scaled = small_model(dropout=0.0), small_model(modifications=("layer_scale",), dropout=0.0)
    same = {name: weight for name, weight in scaled.state_dict().items() if not name.endswith(".gain")}
    assert same.keys() == plain.state_dict().keys()
    gains = {name: torch.ones_like(weight) for name, weight in scaled.state_dict().items() if name.endswith(".gain")}
    scaled.load_state_dict({**plain.state_dict(), **gains})
    source, target = random_ids(2, 5, seeded(4)), random_ids(2, 3, seeded(5))
    assert_close(scaled.decode(target, scaled.encode(source)), plain.decode(target, plain.encode(source)))


@pytest.mark.usefixtures("old_parts")
def test_a_part_that_needs_to_know_what_comes_before_says_how_to_write_it():
    with pytest.raises(ValueError, match=r"derive Scaled from sixfold\.transformer\.Residual"):
        small_model(modifications=("layer_scale", "funnel:blocks=2"))
