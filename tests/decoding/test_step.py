"""A step says what the model says, whatever its head."""

import pytest
import torch

from sixfold import BOS, EOS, Tap
from sixfold.decoding.step import ModelStep, batches_by_length, log_normaliser, padded
from tests.support.small import assert_close, moved_model

HEADS = [(), ("untied",), ("factorized_embedding:inner=8",), ("adaptive_softmax",), ("mixture_of_softmaxes",)]
SOURCES = [[5, 9, 7, EOS], [8, EOS]]


@pytest.mark.parametrize("wishes", HEADS)
@torch.inference_mode()
def test_score_minus_log_z_is_the_log_probability(wishes):
    model = moved_model(modifications=wishes)
    step, memory = ModelStep(model), model.encode(padded(SOURCES, torch.device("cpu")))
    state, ids = step.begin(SOURCES), torch.tensor([[BOS, 7, 12], [BOS, 30, 6]])
    for t in range(3):
        scores, log_z, state, attention, _ = step(ids[:, t : t + 1], state)
        assert_close(scores - log_z[:, None], model.log_probs(model.decode(ids[:, : t + 1], memory)[:, -1]))
        assert attention is None


@pytest.mark.parametrize("words", [1, 5, 16, 1003])
def test_the_normaliser_is_the_sum_of_all_words(words):
    scores = torch.randn(4, words, generator=torch.Generator().manual_seed(1)) * 20
    scores[1, words // 2] = -torch.inf if words > 1 else 3.0
    exact = scores.double().logsumexp(-1)
    assert_close(log_normaliser(scores), exact.float())
    assert_close(log_normaliser(scores.double()), exact)
    assert_close(log_normaliser(scores.T.contiguous().T), exact.float())
    scores[2, -1] = torch.nan
    assert log_normaliser(scores).isnan().tolist() == [False, False, True, False]


def test_the_normaliser_has_a_gradient():
    scores = torch.zeros(1, 4, requires_grad=True)
    log_normaliser(scores).backward()
    assert scores.grad.tolist() == [[0.25] * 4]


@torch.inference_mode()
def test_a_plain_softmax_gives_logits_and_others_what_is_normalised():
    plain, mixture = (moved_model(modifications=wishes) for wishes in ((), ("mixture_of_softmaxes",)))
    for model, normalised in ((plain, False), (mixture, True)):
        step = ModelStep(model)
        assert bool((step(torch.full((2, 1), BOS), step.begin(SOURCES)).log_z == 0).all()) is normalised


@torch.inference_mode()
def test_prompts_of_different_length_are_padded_at_the_left():
    model = moved_model("decoder_only")
    prompts = [[BOS, 7, 8, 9], [BOS, 11]]
    step = ModelStep(model)
    scores, log_z, state, *_ = step(padded(prompts, step.device, "left"), step.begin([[], []]))
    for row, prompt in enumerate(prompts):
        expected = model.log_probs(model.decode(torch.tensor([prompt])))[0, -1]
        assert_close(scores[row] - log_z[row], expected)
    assert state.lengths.tolist() == [4, 2]


@torch.inference_mode()
def test_a_watched_part_says_where_it_looked():
    model = moved_model()
    step, tap = ModelStep(model, watch="decoder.1.cross"), Tap("decoder.1.cross")
    attention = step(torch.full((2, 1), BOS), step.begin(SOURCES)).attention
    model.decode(torch.full((2, 1), BOS), model.encode(padded(SOURCES, step.device)), tap=tap)
    assert_close(attention, tap["decoder.1.cross"][:, :, 0].mean(1))
    assert attention.shape == (2, 4)
    assert_close(attention.sum(1), torch.ones(2, dtype=torch.float64))
    assert attention[1, 2:].tolist() == [0, 0]  # padding


def test_what_cannot_be_stepped():
    with pytest.raises(ValueError, match="encoder_only model writes no text"):
        ModelStep(moved_model("encoder_only"))
    with pytest.raises(ValueError, match=r"no attention 'decoder\.9\.cross'"):
        ModelStep(moved_model(), watch="decoder.9.cross")


def test_padded_by_hand():
    cpu = torch.device("cpu")
    assert padded([[5, 6], [7]], cpu).tolist() == [[5, 6], [7, 0]]
    assert padded([[5, 6], [7]], cpu, "left").tolist() == [[5, 6], [0, 7]]


def test_sources_are_read_by_the_part_in_their_order(monkeypatch):
    """Many at once, or by the part: the same memory, but for the rounding of sums."""
    model = moved_model()
    sources = [[3 + (i + j) % 5 for j in range(1 + i * 7 % 11)] + [EOS] for i in range(20)]
    whole = model.encode(padded(sources, torch.device("cpu")))
    lengths = []
    monkeypatch.setattr(
        "sixfold.decoding.step.padded", lambda rows, *rest: lengths.append(len(rows)) or padded(rows, *rest)
    )
    monkeypatch.setattr("sixfold.decoding.step.PART", 30)
    memory = ModelStep(model).begin(sources).memory
    assert sum(lengths) == 20
    assert len(lengths) > 4
    assert torch.equal(memory.real, whole.real)
    assert all(states is memory.states[0] for states in memory.states)
    assert_close(memory.states[0][memory.real], whole.states[0][whole.real])


def test_batches_hold_neighbours_by_length():
    assert list(batches_by_length([(2,), (5,), (3,), (1,)], 6)) == [[1], [2, 0], [3]]
    assert list(batches_by_length([(3, 1), (2, 2), (3, 2), (3, 1)], 6)) == [[2, 0], [3, 1]]
