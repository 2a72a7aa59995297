"""Greedy search: on a chain that can be computed on paper, and on every model as one would do it by hand."""

import math
from functools import cache

import pytest
import torch

from sixfold import BOS, EOS, PAD
from sixfold.decoding.greedy import Hypothesis, greedy
from sixfold.decoding.step import ModelStep, Step, padded
from tests.small import MODIFICATIONS, POSITIONS, applies, moved_model, seeded

A, B, C = 3, 4, 5

# What follows what in a small language: p(next | word), rows and columns PAD BOS EOS A B C.
CHAIN = torch.tensor(
    [
        [1, 0, 0, 0, 0, 0],  # PAD is never read
        [0.40, 0.30, 0.00, 0.16, 0.08, 0.06],  # after BOS the chain would rather say PAD or BOS, which none may
        [1, 0, 0, 0, 0, 0],
        [0, 0, 0.20, 0.10, 0.60, 0.10],  # A: then B
        [0, 0, 0.30, 0.10, 0.10, 0.50],  # B: then C
        [0, 0, 0.70, 0.10, 0.10, 0.10],  # C: then the end
    ],
    dtype=torch.float64,
)


class Rows:
    """A state that knows which rows are left, and no more."""

    def __init__(self, rows):
        self.rows = rows

    def select(self, places):
        return Rows([self.rows[place] for place in places.tolist()])


class Chain:
    """The step of the chain. Scores need not be normalised: each row has its own log_z."""

    def __init__(self):
        self.asked = []

    def __call__(self, ids, state):
        assert len(state.rows) == ids.shape[0]
        self.asked.append(list(state.rows))
        log_z = torch.tensor([1.5 * row - 2 for row in state.rows], dtype=torch.float64)
        return Step(CHAIN[ids[:, -1]].log() + log_z[:, None], log_z, state)


def search_chain(first, limits, **rest):
    step = Chain()
    return greedy(step, Rows(range(len(first))), torch.tensor(first)[:, None], limits, **rest), step.asked


def test_the_likeliest_path_on_paper():
    (found,), _ = search_chain([BOS], [10])
    assert found.tokens == (A, B, C)
    assert found.ended
    assert found.score == pytest.approx(math.log(0.16 * 0.60 * 0.50 * 0.70))


def test_a_row_that_is_cut_off_has_the_probability_of_ending_there():
    (found,), asked = search_chain([BOS], [2])
    assert found == Hypothesis((A, B), pytest.approx(math.log(0.16 * 0.60 * 0.30)), ended=False)
    assert len(asked) == 3
    (found,), _ = search_chain([BOS], [3])
    assert found.ended  # it has as many tokens as it may, and ends by itself


def test_no_tokens_allowed():
    (found,), _ = search_chain([C], [0])
    assert found == Hypothesis((), pytest.approx(math.log(0.70)), ended=True)
    (found,), _ = search_chain([B], [0])
    assert found == Hypothesis((), pytest.approx(math.log(0.30)), ended=False)


def test_words_that_are_never_to_be_said():
    (found,), _ = search_chain([BOS], [10], never=(PAD, BOS, A))
    assert found.tokens == (B, C)
    assert found.score == pytest.approx(math.log(0.08 * 0.50 * 0.70))


def test_rows_leave_when_they_are_done_and_results_keep_their_order():
    found, asked = search_chain([C, BOS, B, A], [10] * 4, leave=0.0)
    assert [h.tokens for h in found] == [(), (A, B, C), (C,), (B, C)]
    assert asked == [[0, 1, 2, 3], [1, 2, 3], [1, 3], [1]]
    same, asked = search_chain([C, BOS, B, A], [10] * 4, leave=2.0)  # a share that is never reached
    assert same == found
    assert asked == [[0, 1, 2, 3]] * 4
    same, asked = search_chain([C, BOS, B, A], [10] * 4, leave=0.5)
    assert same == found
    assert asked == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 3], [1]]


def test_limits_that_make_no_sense():
    with pytest.raises(ValueError, match="2 rows need as many limits, got 1"):
        search_chain([A, B], [3])
    with pytest.raises(ValueError, match="at least 0"):
        search_chain([A], [-1])


# Models -----------------------------------------------------------------------------------------------

WORDS = 12
SOURCES = [[3, 9, 5], [7], [11, 4, 4, 8, 3, 10, 9], [6, 5, 3, 7], [9, 8]]
LIMITS = [6, 5, 7, 0, 3]
EVERYBODY = list(range(len(SOURCES)))
# A fresh model whose input and output share a table says one word for ever; with other words for its
# scores, the same in all routes, it wanders about and meets EOS.
OTHER = torch.randperm(WORDS, generator=seeded(5))

# All modifications alone, and the kinds of positions.
WISHES = list(dict.fromkeys([*POSITIONS.values(), *((wish,) for wish in MODIFICATIONS)]))


def writers():
    found = [
        (kind, wishes) for kind in ("encoder_decoder", "decoder_only") for wishes in WISHES if applies(kind, *wishes)
    ]
    return pytest.mark.parametrize(
        ("kind", "wishes"), [pytest.param(kind, wishes, id=f"{kind}-{'+'.join(wishes)}") for kind, wishes in found]
    )


@cache
def made(kind, wishes, dtype=torch.float64):
    return moved_model(kind, wishes, vocab=WORDS, dtype=dtype)


def shuffled(step):
    def other(ids, state):
        scores, log_z, state, attention = step(ids, state)
        return Step(scores[:, OTHER], log_z, state, attention)

    return other


def search(model, rows, **rest):
    """Greedy search for these rows, in one batch. A decoder alone has the sources for prompts."""
    step, limits = ModelStep(model), [LIMITS[row] for row in rows]
    sources = [SOURCES[row] for row in rows]
    with torch.inference_mode():
        if model.kind == "encoder_decoder":
            state, first = step.begin([[*ids, EOS] for ids in sources]), torch.full((len(rows), 1), BOS)
        else:
            state, first = step.begin_empty(len(rows)), padded([[BOS, *ids] for ids in sources], step.device, "left")
        return greedy(shuffled(step), state, first, limits, **rest)


@torch.inference_mode()
def naive(model, row):
    """One sentence, everything computed anew for every word, as one would write it first."""
    memory = (model.encode(torch.tensor([[*SOURCES[row], EOS]])),) if model.kind == "encoder_decoder" else ()
    prompt = [BOS] if model.kind == "encoder_decoder" else [BOS, *SOURCES[row]]
    tokens, total = [], 0.0
    while True:
        log_p = model.log_probs(model.decode(torch.tensor([prompt + tokens]), *memory))[0, -1, OTHER]
        word = max((w for w in range(WORDS) if w not in (PAD, BOS)), key=lambda w: log_p[w])
        if word == EOS or len(tokens) == LIMITS[row]:
            return tuple(tokens), total + float(log_p[EOS]), word == EOS
        tokens.append(word)
        total += float(log_p[word])


def assert_same(left, right, within=1e-9):
    for one, other in zip(left, right, strict=True):
        assert (one.tokens, one.ended) == (other.tokens, other.ended)
        assert one.score == pytest.approx(other.score, abs=within)


@writers()
def test_together_with_a_cache_is_alone_without(kind, wishes):
    model = made(kind, wishes)
    assert_same(search(model, EVERYBODY), [Hypothesis(*naive(model, row)) for row in EVERYBODY])


@pytest.mark.parametrize("wishes", [(), ("shaw",), ("switch:experts=4,every=2",), ("dynamic_convolution",)])
@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder_only"])
def test_neither_order_nor_leaving_makes_a_difference(kind, wishes):
    model = made(kind, wishes)
    found = search(model, EVERYBODY, leave=0.0)  # each leaves at once
    assert_same(found, search(model, EVERYBODY, leave=2.0))  # nobody leaves
    assert_same(found[::-1], search(model, EVERYBODY[::-1]))


def test_these_sentences_try_what_they_should():
    """Ends at different times, chosen ends and limits, different words."""
    found = [h for wish in MODIFICATIONS[:20] for h in search(made("encoder_decoder", (wish,)), EVERYBODY)]
    assert {len(h.tokens) for h in found if h.ended} >= {0, 1, 2, 3}
    assert {len(h.tokens) for h in found if not h.ended} >= {0, 3, 5, 6, 7}
    assert len({h.tokens for h in found}) > 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_any_precision_has_scores_in_at_least_single_precision(dtype):
    model = made("encoder_decoder", (), dtype)
    step = ModelStep(model)
    scores, log_z, _, _ = step(torch.tensor([[BOS]]), step.begin([[3, EOS]]))
    assert scores.dtype == log_z.dtype == torch.float32
    assert float((scores - log_z[:, None]).exp().sum()) == pytest.approx(1, abs=1e-5)
