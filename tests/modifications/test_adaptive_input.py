"""Clusters of words with vectors of different width equal one table, written out."""

import pytest
import torch

import sixfold
from sixfold.modifications.adaptive_input import edges_of
from tests.support.small import assert_close, random_ids, seeded, small_model, small_sizes

HERE = "adaptive_input:cutoffs=5/20,factors=1/2/4"


def written_out(table):
    """E (V, D), word by word."""
    rows = []
    for word in range(table.edges[-1]):
        (c,) = [c for c in range(len(table.clusters)) if table.edges[c] <= word < table.edges[c + 1]]
        cluster = table.clusters[c]
        row = cluster.weight[word - table.edges[c]]
        rows.append(row if cluster.projection is None else cluster.projection.weight @ row)
    return torch.stack(rows)


@torch.no_grad()
def test_words_are_read_and_written_as_by_one_table():
    model = small_model(modifications=(HERE,), d_model=36)
    (table,) = model.tables
    assert [tuple(cluster.weight.shape) for cluster in table.clusters] == [(5, 36), (15, 18), (30, 9)]
    assert [cluster.projection is None for cluster in table.clusters] == [True, False, False]
    ids = torch.arange(50).view(5, 10)
    assert_close(table(ids), 6 * written_out(table)[ids])
    x = torch.randn(2, 5, 36, dtype=torch.float64, generator=seeded(1))
    assert_close(table.logits(x), x @ written_out(table).T)
    assert_close(model.log_probs(x), (x @ written_out(table).T).log_softmax(-1))


@torch.no_grad()
def test_with_full_width_everywhere_it_is_the_plain_model():
    plain, model = small_model(), small_model(modifications=("adaptive_input:factors=1/1/1",))
    state = plain.state_dict()
    parts = state.pop("tables.0.weight").split([4, 9, 37])
    model.load_state_dict({**state, **{f"tables.0.clusters.{i}.weight": part for i, part in enumerate(parts)}})
    ids = random_ids(2, 5, seeded(2))
    states = [m.log_probs(m.decode(ids, m.encode(ids))) for m in (model, plain)]
    assert_close(*states)


def test_gradients_are_those_of_one_table():
    model = small_model(modifications=(HERE,))
    (table,) = model.tables
    ids = torch.tensor([[0, 4, 5, 19, 20, 49, 4]])
    weight = torch.randn(1, 7, 16, dtype=torch.float64, generator=seeded(3))
    parameters = list(table.parameters())
    assert_close(
        torch.autograd.grad((table(ids) * weight).sum(), parameters),
        torch.autograd.grad((4 * written_out(table)[ids] * weight).sum(), parameters),
    )


def test_a_vocabulary_is_cut_as_the_study_cut_it():
    assert edges_of(32128, ()) == [0, 2500, 8500, 32128]
    assert edges_of(32128, (), sentinels=128) == [0, 2500, 8500, 32000, 32128]
    assert edges_of(50, ()) == [0, 4, 13, 50]
    assert edges_of(4, ()) == [0, 1, 2, 4]
    assert edges_of(50, (7,)) == [0, 7, 50]


@pytest.mark.parametrize("cutoffs", ["50/51", "20/5", "0/4", "4/4", "4/50"])
def test_clusters_must_not_be_empty(cutoffs):
    with pytest.raises(ValueError, match="divide 50 words"):
        sixfold.build(small_sizes(), [f"adaptive_input:cutoffs={cutoffs}"])


def test_factors_must_fit_the_cutoffs():
    with pytest.raises(ValueError, match="2 clusters need as many factors"):
        sixfold.build(small_sizes(), ["adaptive_input:cutoffs=5"])
    with pytest.raises(ValueError, match="at least 1"):
        sixfold.build(small_sizes(), ["adaptive_input:factors=1/2/0"])


def test_at_the_studys_size_the_table_has_its_parameters():
    """1,920,000 + 6000·256 + 256·768 + 23,628·64 + 64·768"""
    from sixfold.narang.rows import BASELINE

    model = sixfold.build(BASELINE, ["adaptive_input"], device="meta")
    assert sum(p.numel() for p in model.tables.parameters()) == 5_213_952


def test_every_cluster_starts_with_unit_variance():
    model = sixfold.build(small_sizes(d_model=256, vocab=3000), ["adaptive_input"], seed=1)
    (table,) = model.tables
    x = torch.randn(50, 256, generator=seeded(4))
    for start, end in ((0, 233), (233, 794), (794, 3000)):
        assert table(torch.arange(start, end)).std().item() == pytest.approx(1, rel=0.1)
        assert table.logits(x)[:, start:end].std().item() == pytest.approx(1, rel=0.1)


def test_tables_do_not_decay():
    model = small_model(modifications=(HERE,))
    still = {id(p) for group in model.groups() if not group.decay for p in group.parameters}
    assert all(id(p) in still for p in model.tables.parameters())


def test_separate_vocabularies_are_cut_apart():
    sizes = small_sizes(vocab=0, source_vocab=100, target_vocab=50)
    model = sixfold.build(sizes, ["adaptive_input"], device="meta")
    assert [model.roles[role].edges for role in ("source", "target")] == [[0, 8, 26, 100], [0, 4, 13, 50]]
    assert model.roles["target"] is model.roles["output"]


def test_no_vector_is_so_narrow_that_words_cannot_be_told_apart():
    model = small_model(modifications=("adaptive_input",))
    assert [cluster.weight.shape[1] for cluster in model.tables[0].clusters] == [16, 8, 8]
    assert small_model(modifications=("adaptive_input",), d_model=4).tables[0].clusters[2].weight.shape[1] == 4
