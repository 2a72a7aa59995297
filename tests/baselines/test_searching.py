"""The search with baselines that attend with one head: coverage, length penalty, alignments, company."""

import math

import pytest
import torch

from sixfold import BOS, EOS, Tap
from sixfold.decoding.alignment import watched_layer
from tests.support.translators import assert_same, small_translator

NAME, BETA, ALPHA = "decoder.0.cross", 20.0, 0.2
LINES = ["a b c d e f g h", "b", "c c a e d a"]
attentive = pytest.mark.parametrize(
    "wish",
    [
        *("bahdanau", "luong", "luong:input_feeding=false", "gnmt", "deep_att", "moe_lstm:experts=4,k=2"),
        "conv_s2s",
    ],
)


def coverage(translator, line, output):
    """Σ_j log min(Σ_t α_tj, 1) of an output, from the weights of one pass over both texts."""
    (model,), tokenizers = translator.models, translator.tokenizers
    source = torch.tensor([[*tokenizers.source.encode(line), EOS]])
    tap, written = Tap(NAME), output.tokens
    model.decode(torch.tensor([[BOS, *written]]), model.encode(source), tap=tap)
    return tap[NAME][0, 0].sum(0).clamp(1e-6, 1).log().sum().item()


@attentive
@torch.no_grad()
def test_outputs_are_ranked_by_the_terms_of_length_and_coverage(wish):
    translator = small_translator((wish,), max_length=4)
    assert watched_layer(translator.models[0]) == NAME
    for name, p in translator.models[0].named_parameters():
        if ".cross." in name:
            p.mul_(8)  # so that hypotheses differ in where they look
    keys = {"beam_size": 4, "n_best": 4, "length_penalty": ALPHA}
    orders = []
    for beta in (BETA, 0.0):
        ranks = []
        for line, found in zip(LINES, translator.translate(LINES, coverage_penalty=beta, **keys), strict=True):
            terms = []
            for each in found.n_best:
                score = math.fsum(each.log_probs) / ((5 + len(each.log_probs)) / 6) ** ALPHA
                assert each.score == pytest.approx(score)
                terms.append(score + beta * coverage(translator, line, each))
            assert terms == sorted(terms, reverse=True)
            ranks.append([each.text for each in found.n_best])
        orders.append(ranks)
    assert orders[0] != orders[1]


@attentive
@pytest.mark.parametrize("keys", [{"beam_size": 3}, {"sample": True}, {"beam_size": 2, "precision": "int8"}], ids=str)
def test_a_line_is_the_same_alone_and_in_company(wish, keys):
    translator = small_translator((wish,), max_length=7)
    together = translator.translate(LINES, **keys)
    assert_same(together, [translator.translate([line], **keys)[0] for line in LINES])
