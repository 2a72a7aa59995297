"""The Synthesizers against loops, and where they reduce to attention."""

import pytest
import torch

import sixfold
from tests.support.small import assert_close, pad, random_ids, random_rows, seeded, small_model
from tests.support.stage import attention_in, call_for

KINDS = ("dense", "dense_plus", "dense_plus_alpha", "factorized", "random", "random_plus", "random_plus_alpha")
STUDY = tuple(f"{kind}_study" for kind in KINDS[:4])


def named(kind, length=9):
    return f"synthesizer_{kind}{',' if ':' in kind else ':'}length={length}"


def part_of(kind, causal, **sizes):
    """Every parameter random, so that none can hide."""
    part = attention_in(named(kind), causal, **sizes)
    for i, p in enumerate(part.parameters()):
        torch.nn.init.normal_(p, std=0.5, generator=seeded(i))
    return part


def synthetic(part, x, q, h, i, j):
    """S_hij of one row x (L, D), by its definition."""
    scores = part.scores
    match type(scores).__name__:
        case "Random":
            return scores.table[h, i, j]
        case "Factorized":
            return sum(a * b for a, b in zip(scores.first[h, i], scores.second[h, j], strict=True))
        case "Dense":
            own = slice(h * 8, h * 8 + 8)  # of d_head 8
            hidden = (scores.inner.weight[own] @ x[i] + scores.inner.bias[own]).relu()
            return hidden @ scores.outer[h, j] + scores.bias[h, j, 0]
        case "SharedFactorized":  # the query's place does not matter
            return sum(a * b for a, b in zip(scores.first[h, j], scores.second[h, j], strict=True))
    return q[h][i].relu() @ scores.outer[0, j]


def by_loop(part, x, causal):
    """One row x (L, D), one head, one query after another."""
    plus = hasattr(part, "qkv")
    matrices = (part.qkv if plus else part.qv).weight.split(16)  # those of q, k, v that there are; 2 heads of 8
    q, k, v = (
        [x @ m[h * 8 : h * 8 + 8].T for h in range(2)] for m in (matrices[0], matrices[1 % len(matrices)], matrices[-1])
    )
    a = part.alpha.sigmoid() if plus and part.alpha is not None else None
    heads = []
    for h in range(2):
        outputs = []
        for i in range(len(x)):
            seen = range(i + 1 if causal else len(x))
            scores = torch.stack([synthetic(part, x, q, h, i, j) for j in seen])
            if plus:
                dots = torch.stack([q[h][i] @ k[h][j] for j in seen]) / 8**0.5
                scores = dots + scores if a is None else (1 - a) * dots + a * scores
            outputs.append(scores.softmax(0) @ v[h][: len(seen)])
        heads.append(torch.stack(outputs))
    return part.output(torch.cat(heads, -1))


@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
@pytest.mark.parametrize("kind", [*KINDS, *STUDY])
@torch.no_grad()
def test_it_is_what_its_page_says(kind, causal):
    part = part_of(kind, causal)
    x = torch.randn(2, 5, 16, dtype=torch.float64, generator=seeded(1))
    expected = torch.stack([by_loop(part, row, causal) for row in x])
    assert_close(part(x, call_for(x, causal)), expected, within=1e-12)


@pytest.mark.parametrize("kind", ["random", "factorized"])
@torch.no_grad()
def test_the_weights_do_not_depend_on_the_text(kind):
    model = small_model("encoder_only", (named(kind),))
    maps = []
    for seed in (2, 3):
        model.encode(random_ids(1, 5, seeded(seed)), tap=(tap := sixfold.Tap()))
        maps.append([tap[name] for name in tap])
    assert len(maps[0]) == 2
    assert_close(maps[0], maps[1], within=1e-14)
    assert (maps[0][0][0, 0, 0] - maps[0][0][0, 0, 1]).abs().max() > 1e-4  # but they do on the query's position


@torch.no_grad()
def test_in_the_study_all_queries_of_the_factorized_one_look_alike():
    model = small_model("encoder_only", (named("factorized_study"),))
    model.encode(random_ids(2, 5, seeded(2)), tap=(tap := sixfold.Tap()))
    for name in tap:
        assert_close(tap[name], tap[name][:, :, :1].expand(-1, -1, 5, -1), within=1e-14)
        assert (tap[name][0, 0, 0] - 1 / 5).abs().max() > 1e-4


@pytest.mark.parametrize("position", ["no_positions", "t5_bias", "rotary", "shaw"])
@pytest.mark.parametrize("kind", ["random_plus", "random_plus_alpha", "dense_plus_study"])
@torch.no_grad()
def test_without_synthetic_scores_it_is_attention(kind, position):
    plain, model = small_model(modifications=(position,)), small_model(modifications=(position, named(kind)))
    model.load_state_dict(plain.state_dict(), strict=False)
    for name, p in model.named_parameters():
        if "scores." in name:
            p.zero_()
        if "alpha" in name:
            p.fill_(-50)
    ids, source = pad(random_rows((5, 3), seeded(4))), pad(random_rows((4, 6), seeded(5)))
    assert_close(model.decode(ids, model.encode(source)), plain.decode(ids, plain.encode(source)), within=1e-12)


@torch.no_grad()
def test_a_factorized_table_of_full_rank_is_any_table():
    random, factorized = part_of("random", causal=True), attention_in("synthesizer_factorized:length=9,rank=9", True)
    factorized.load_state_dict(random.state_dict(), strict=False)
    factorized.scores.first.copy_(random.scores.table)
    factorized.scores.second.copy_(torch.eye(9))
    x = torch.randn(2, 6, 16, dtype=torch.float64, generator=seeded(6))
    assert_close(factorized(x, call_for(x, True)), random(x, call_for(x, True)), within=1e-12)


@pytest.mark.parametrize("kind", [*KINDS, *STUDY])
@torch.no_grad()
def test_a_step_through_the_cache_reads_the_row_of_its_own_position(kind):
    model = small_model("decoder_only", (named(kind),))
    rows = random_rows((2, 5), seeded(7))
    cache = sixfold.Cache(rows=2)
    model.decode(pad(rows, "left"), cache=cache)
    nexts = random_ids(2, 1, seeded(8))
    states = model.decode(nexts, cache=cache)
    for row, new, state in zip(rows, nexts, states, strict=True):
        assert_close(state[-1], model.decode(torch.cat([row, new])[None])[0, -1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_is_too_long_is_refused(kind):
    model = small_model(modifications=(named(kind, length=4),))
    memory = model.encode(random_ids(1, 4, seeded(9)))
    with pytest.raises(ValueError, match="5 positions"):
        model.encode(random_ids(1, 5, seeded(9)))
    cache = sixfold.Cache(memory)
    for _ in range(4):
        model.decode(random_ids(1, 1, seeded(10)), cache=cache)
    with pytest.raises(ValueError, match="5 positions"):
        model.decode(random_ids(1, 1, seeded(10)), cache=cache)


@pytest.mark.parametrize("wish", ["synthesizer_random:length=0", "synthesizer_factorized:rank=0"])
def test_impossible_options_are_refused(wish):
    with pytest.raises(ValueError, match="at least 1, got 0"):
        small_model(modifications=(wish,))


@pytest.mark.parametrize("position", ["rotary", "shaw"])
def test_positions_that_need_queries_and_keys_are_refused_where_there_are_none(position):
    with pytest.raises(ValueError, match="never calls"):
        small_model("decoder_only", (position, "synthesizer_random"))
