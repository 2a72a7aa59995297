"""Which roles share a table: told by changing one and seeing what changes."""

import pytest
import torch

import sixfold
from tests.support.small import random_ids, seeded, small_model, small_sizes

ROLES = ("source", "target", "output")


def vectors(model):
    """What each role makes of the same ids or states."""
    ids, x = random_ids(2, 4, seeded(1)), torch.randn(3, 16, dtype=torch.float64, generator=seeded(2))
    return {"source": model.roles["source"](ids), "target": model.roles["target"](ids), "output": model.log_probs(x)}


@pytest.mark.parametrize(
    ("modifications", "together"),
    [
        ((), [ROLES]),
        (("tied_inputs",), [("source", "target"), ("output",)]),
        (("tied_decoder",), [("source",), ("target", "output")]),
        (("untied",), [("source",), ("target",), ("output",)]),
    ],
)
@torch.no_grad()
def test_a_change_of_one_table_changes_the_roles_that_share_it(modifications, together):
    model = small_model(modifications=modifications)
    assert len(model.tables) == len(together)
    assert sum(p.numel() for p in model.tables.parameters()) == len(together) * 50 * 16
    for group in together:
        for role in group:
            before = vectors(model)
            model.roles[role].weight.mul_(1.5)
            after = vectors(model)
            assert tuple(r for r in ROLES if not torch.equal(before[r], after[r])) == group


@pytest.mark.parametrize("modification", ["tied_inputs", "tied_decoder", "untied"])
def test_a_loaded_model_shares_what_the_saved_one_shared(modification, tmp_path):
    model = small_model(modifications=(modification,), dtype=torch.float32)
    sixfold.save(model, tmp_path / "model")
    loaded = sixfold.load_model(tmp_path / "model").to(torch.float64)
    assert len(loaded.tables) == len(model.tables)
    for one in ROLES:
        for other in ROLES:
            same = model.roles[one] is model.roles[other]
            assert (loaded.roles[one].weight is loaded.roles[other].weight) == same


def test_separate_vocabularies():
    sizes = small_sizes(vocab=0, source_vocab=40, target_vocab=30)
    with pytest.raises(ValueError, match="separate vocabularies of 40 and 30 words"):
        sixfold.build(sizes, ["tied_inputs"])
    plain, decoder, untied = (sixfold.build(sizes, m, seed=1) for m in ([], ["tied_decoder"], ["untied"]))
    for model in (plain, decoder):
        assert [table.weight.shape[0] for table in model.tables] == [40, 30]
        assert model.roles["target"] is model.roles["output"]
    assert [table.weight.shape[0] for table in untied.tables] == [40, 30, 30]


@pytest.mark.parametrize("kind", ["decoder_only", "encoder_only"])
def test_a_model_of_one_stack_has_two_roles(kind):
    tables = {m: len(small_model(kind, (m,)).tables) for m in ("tied_inputs", "tied_decoder", "untied")}
    assert tables == {"tied_inputs": 2, "tied_decoder": 1, "untied": 2}
