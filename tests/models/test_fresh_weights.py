"""Fresh weights by name: variants of a model with one seed are equal wherever they have a parameter in common."""

import hashlib
import os
import subprocess
import sys
from itertools import combinations

import pytest
import torch
from torch import nn

import sixfold
from sixfold.core.drawing import generator_of
from sixfold.modifications import learned_positions
from sixfold.modifications.weighted import Branches
from sixfold.spec.registry import choose, find
from tests.support.small import MODIFICATIONS, applies, small_sizes

KINDS = ("encoder_decoder", "decoder_only", "encoder_only")


def fresh(*modifications, kind="encoder_decoder", seed=1, **sizes):
    """Name → parameter of a new model."""
    return dict(sixfold.build(small_sizes(**sizes), modifications, kind, seed=seed).named_parameters())


def common(left, right):
    """The names that two models have in common, with one shape."""
    return [name for name in left if name in right and left[name].shape == right[name].shape]


def drawn(weights):
    """The names of those that are no constants."""
    return [name for name, p in weights.items() if p.numel() > 1 and (p != p.flatten()[0]).any()]


def generator_by_hand(text):
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little"))


# By name ----------------------------------------------------------------------------------------------------


def test_a_weight_can_be_drawn_by_hand():
    weights = fresh(seed=7)
    for name, std in (("encoder.layers.1.attention.qkv.weight", 16**-0.5), ("tables.0.weight", 16**-0.5)):
        expected = torch.empty(weights[name].shape).normal_(std=std, generator=generator_by_hand(f"7 {name}"))
        assert torch.equal(weights[name], expected)


def test_the_generators_of_large_models_differ():
    """torch uses 32 bits of a seed on the CPU; with the default seed, no two of these names share them."""
    one, same = (torch.rand(9, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5 + 2**32))
    assert torch.equal(one, same)
    names = set()
    for kind in KINDS:
        sizes = sixfold.Sizes(vocab=9, d_model=8, d_ff=8, heads=1, encoder_layers=48, decoder_layers=48)
        names |= {name for name, _ in sixfold.build(sizes, ["untied"], kind, device="meta").named_parameters()}
    assert len({generator_of(1, name).initial_seed() % 2**32 for name in names}) == len(names) > 1000


@pytest.mark.parametrize("modification", MODIFICATIONS)
def test_a_modification_leaves_all_other_weights_as_they_are(modification):
    plain, other = fresh(), fresh(modification)
    different = {name for name in common(plain, other) if not torch.equal(plain[name], other[name])}
    least = 2 if "embedding" in modification or "adaptive" in modification else 5
    if find(choose(modification).name).group == "baselines":  # which have the table only
        least = 1
    assert len(common(plain, other)) >= least
    if modification.startswith("fixup"):  # which declares other distributions for the matrices of all layers
        different = {name for name in different if ".layers." not in name}
    assert not different


PAIRS = [*combinations(("rotary", "swiglu", "switch:experts=4,every=2", "untied", "rms_norm"), 2)]


@pytest.mark.parametrize("pair", [*PAIRS, ("fixup", "fixup_study"), ("weighted", "weighted_study")], ids="+".join)
def test_two_modifications_share_what_they_have_in_common(pair):
    left, right = (fresh(each) for each in pair)
    others = {".cross."} if "fixup" in pair else set()  # the study's cross-attention begins in another way
    names = [name for name in common(left, right) if not any(other in name for other in others)]
    assert len(names) > 10
    assert all(torch.equal(left[name], right[name]) for name in names)


def test_a_deeper_model_begins_with_the_layers_of_the_other():
    two, three = fresh(), fresh(encoder_layers=3, decoder_layers=4)
    assert two.keys() < three.keys()
    assert all(torch.equal(p, three[name]) for name, p in two.items())


@pytest.mark.parametrize(("left", "right"), [*combinations(KINDS, 2)])
def test_kinds_of_models_share_what_they_have_in_common(left, right):
    left, right = fresh(kind=left), fresh(kind=right)
    names = common(left, right)
    assert "tables.0.weight" in names
    assert all(torch.equal(left[name], right[name]) for name in names)


def test_another_seed_or_another_name_gives_other_numbers():
    one, other = fresh(seed=1), fresh(seed=2)
    names = drawn(one)
    assert len(names) == 1 + 2 * (2 + 2) + 2 * (2 + 3 + 2)  # the table, and the matrices of both stacks' layers
    assert not any((one[name] == other[name]).any() for name in names)
    alike = [(a, b) for a, b in combinations(names, 2) if one[a].shape == one[b].shape]
    assert len(alike) > 20
    assert not any((one[a] == one[b]).any() for a, b in alike)


def test_a_tied_table_has_its_first_name():
    tied, untied = fresh(), fresh("untied")
    assert torch.equal(tied["tables.0.weight"], untied["tables.0.weight"])
    assert not (untied["tables.0.weight"] == untied["tables.2.weight"]).any()


def test_another_process_draws_the_same_bytes():
    program = (
        "import hashlib, sixfold; sizes = sixfold.Sizes(d_model=16, d_ff=32, heads=2, encoder_layers=1, vocab=50)\n"
        "model = sixfold.build(sizes, ['shaw', 'geglu'], 'encoder_only', seed=3)\n"
        "print(hashlib.sha256(b''.join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())"
    )
    results = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(n), "OMP_NUM_THREADS": str(n)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for n in (1, 2)
    ]
    sizes = small_sizes(encoder_layers=1, decoder_layers=6, dropout=0.1)
    here = sixfold.build(sizes, ["shaw", "geglu"], "encoder_only", seed=3)
    expected = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in here.parameters())).hexdigest()
    assert [line.strip() for line in results] == [expected] * 2


@pytest.mark.parametrize("modification", ["weighted", "weighted_study"])
def test_branch_weights_are_held_from_the_beginning(modification):
    model = sixfold.build(small_sizes(heads=4), [modification], seed=1)
    for part in (part for part in model.modules() if isinstance(part, Branches)):
        assert torch.equal(part.held, torch.stack([part.kappa, part.alpha]))
        assert part.held.sum(1).tolist() == pytest.approx([1, 1])


# Who draws --------------------------------------------------------------------------------------------------


@pytest.fixture
def _memory_of_nan():
    """torch.empty gives NaN, so that a weight that nobody sets is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_memory_of_nan")
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_draws_in_a_constructor_and_every_weight_is_set(kind):
    for modification in MODIFICATIONS:
        if applies(kind, modification):
            before = torch.get_rng_state()
            model = sixfold.build(small_sizes(), [modification], kind, seed=1)
            assert torch.equal(torch.get_rng_state(), before), modification
            assert not any(value.isnan().any() for value in model.state_dict().values()), modification


def test_a_part_of_ours_that_draws_is_our_bug(monkeypatch):
    monkeypatch.setattr(learned_positions, "parameter", lambda shape, start: nn.Parameter(torch.rand(shape)))
    with pytest.raises(AssertionError, match=r"^no distribution is declared for input\.position\.table"):
        sixfold.build(small_sizes(), ["learned_positions"], "decoder_only", seed=1)


def test_torchs_generator_gives_the_seed_where_there_is_none():
    def two():
        torch.manual_seed(0)
        return [sixfold.build(small_sizes()).tables[0].weight for _ in range(2)]

    (one, another), (same, _) = two(), two()
    assert torch.equal(one, same)
    assert not (one == another).any()


def test_on_the_meta_device_nothing_is_drawn():
    before = torch.get_rng_state()
    model = sixfold.build(small_sizes(), ["shaw"], device="meta")
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.is_meta for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_weights_have_the_default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        models = [fresh(modification) for modification in MODIFICATIONS]
    finally:
        torch.set_default_dtype(torch.float32)
    for weights in models:
        assert {p.dtype for p in weights.values()} == {dtype}
        assert all(p.isfinite().all() for p in weights.values())
