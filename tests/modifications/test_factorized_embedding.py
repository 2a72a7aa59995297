"""Factorised embeddings equal the plain table that is the product of their factors."""

import math

import pytest
import torch

import sixfold
from sixfold.modifications._shared.factorized import Factors
from sixfold.transformer import TokenEmbedding
from tests.support.small import assert_close, random_ids, seeded, small_model, small_sizes


def product(table):
    """E = A B, (V, D)"""
    return table.weight @ table.projection.weight.T


@torch.no_grad()
def test_words_are_read_and_written_by_the_product_of_the_factors():
    model = small_model(modifications=("factorized_shared_embedding:inner=3",))
    (table,) = model.tables
    assert table.weight.shape == (50, 3)
    ids, x = random_ids(2, 5, seeded(1)), torch.randn(2, 5, 16, dtype=torch.float64, generator=seeded(2))
    assert_close(table(ids), 4 * product(table)[ids])
    assert_close(table.logits(x), x @ product(table).T)
    assert torch.linalg.matrix_rank(table.logits(x.flatten(0, 1))) == 3
    assert_close(model.log_probs(x), (x @ product(table).T).log_softmax(-1))


@torch.no_grad()
def test_with_full_width_and_an_identity_it_is_the_plain_model():
    plain, model = small_model(), small_model(modifications=("factorized_shared_embedding:inner=16",))
    model.load_state_dict(
        {**plain.state_dict(), "tables.0.projection.weight": torch.eye(16, dtype=torch.float64)}, strict=True
    )
    ids = random_ids(2, 5, seeded(3))
    states = [m.log_probs(m.decode(ids, m.encode(ids))) for m in (model, plain)]
    assert_close(*states)


def test_the_output_is_a_full_table_unless_it_is_shared():
    model = small_model(modifications=("factorized_embedding:inner=3",))
    table = model.roles
    assert table["source"] is table["target"]
    assert isinstance(table["target"], Factors)
    assert type(table["output"]) is TokenEmbedding
    assert table["output"].weight.shape == (50, 16)
    x = torch.randn(2, 16, dtype=torch.float64, generator=seeded(4))
    assert_close(model.log_probs(x), (x @ table["output"].weight.T).log_softmax(-1))


def test_separate_vocabularies_have_factors_of_their_own():
    model = small_model(modifications=("factorized_embedding:inner=3",), vocab=0, source_vocab=40, target_vocab=30)
    assert [tuple(model.roles[role].weight.shape) for role in ("source", "target", "output")] == [
        (40, 3),
        (30, 3),
        (30, 16),
    ]
    shared = small_model(
        modifications=("factorized_shared_embedding:inner=3",), vocab=0, source_vocab=40, target_vocab=30
    )
    assert shared.roles["target"] is shared.roles["output"]
    assert shared.roles["source"].weight.shape == (40, 3)


def test_the_product_starts_as_a_plain_table():
    torch.manual_seed(0)
    table = Factors(4000, 64, 256)
    assert product(table).std().item() == pytest.approx(256**-0.5, rel=0.05)
    assert table(torch.arange(4000)).std().item() == pytest.approx(1, rel=0.05)
    x = torch.randn(100, 256)
    assert table.logits(x).std().item() == pytest.approx(1, rel=0.05)


def test_it_can_be_combined_with_who_shares():
    """The output gets factors of its own."""
    model = small_model(modifications=("factorized_shared_embedding:inner=3", "tied_inputs"))
    assert [table.weight.shape[1] for table in model.tables] == [3, 3]
    with pytest.raises(ValueError, match="both fill the slot 'tables'"):
        sixfold.build(small_sizes(), ["factorized_embedding", "tied_inputs"])
    with pytest.raises(ValueError, match="inner must be at least 1, got 0"):
        sixfold.build(small_sizes(), ["factorized_embedding:inner=0"])


def test_tables_do_not_decay():
    for modification in ("factorized_embedding:inner=3", "factorized_shared_embedding:inner=3"):
        model = small_model(modifications=(modification,))
        still = {id(p) for group in model.groups() if not group.decay for p in group.parameters}
        assert all(id(p) in still for p in model.tables.parameters())


@torch.no_grad()
def test_the_scale_is_the_root_of_the_width():
    table = Factors(3, 1, 9)
    table.weight.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
    table.projection.weight.fill_(0.5)
    assert_close(table(torch.tensor([2])), torch.full((1, 9), 3 * 0.5 * math.sqrt(9)))
