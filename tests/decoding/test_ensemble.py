"""Several models write together: probabilities are averaged, and all else is as with one."""

import pytest
import torch

from sixfold import BOS, EOS
from sixfold.decoding.ensemble import Ensemble
from sixfold.decoding.step import ModelStep
from sixfold.decoding.translator import Translator
from tests.support.small import assert_close
from tests.support.translators import LETTERS, LINES, METHODS, assert_same, small_translator


def pair(**keys):
    one, other = small_translator(seed=0), small_translator(("post_norm",), seed=7)
    return one, other, Translator([one.model, other.model], one.tokenizers, one.decoding, **keys)


def test_two_of_the_same_are_as_one():
    one, *_ = pair()
    twice = Translator([one.model, one.model], one.tokenizers)
    for keys in METHODS.values():
        assert_same(one.translate(LINES, **keys), twice.translate(LINES, **keys))


def test_the_probability_is_the_mean():
    one, other, _ = pair()
    sources = [[5, 6, EOS], [7, EOS]]
    steps = [ModelStep(each.model) for each in (one, other)]
    both = Ensemble(steps)
    ids = torch.tensor([[BOS], [BOS]])
    with torch.inference_mode():
        answers = [step(ids, step.begin(sources)) for step in steps]
        mean = sum((a.scores - a.log_z[:, None]).exp() for a in answers) / 2
        answer = both(ids, both.begin(sources))
    assert_close((answer.scores - answer.log_z[:, None]).exp(), mean)
    assert_close(mean.sum(1), torch.ones(2, dtype=torch.float64))
    assert answer.attention is None


def test_attention_is_the_mean_too():
    one, other, _ = pair()
    steps = [ModelStep(each.model, "decoder.0.cross") for each in (one, other)]
    both, ids = Ensemble(steps), torch.tensor([[BOS]])
    with torch.inference_mode():
        seen = [step(ids, step.begin([[5, 6, EOS]])).attention for step in steps]
        assert_close(both(ids, both.begin([[5, 6, EOS]])).attention, (seen[0] + seen[1]) / 2)


@pytest.mark.parametrize("method", METHODS)
def test_the_score_is_that_of_reading_with_both(method):
    one, other, both = pair()
    for source, line in zip(LINES, both.translate(LINES, max_length=9, **METHODS[method]), strict=True):
        if source.strip():
            p = 0.0
            for model in (one.model, other.model):
                memory = model.encode(torch.tensor([[*LETTERS.encode(source), EOS]]))
                log_p = model.log_probs(model.decode(torch.tensor([[BOS, *line.tokens]]), memory))[0]
                p = p + log_p.exp()[range(len(line.tokens) + 1), [*line.tokens, EOS]] / 2
            assert line.log_probs == pytest.approx(p.log().tolist(), abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_company_makes_no_difference(method):
    *_, both = pair()
    keys = {**METHODS[method], "max_length": 9}
    alone = [both.translate([line], **keys)[0] for line in LINES]
    assert_same(alone, both.translate(LINES, batch_tokens=20, **keys))


def test_what_the_least_of_them_can_read_is_the_limit():
    one, *_ = pair()
    short = small_translator(("learned_positions:length=4",))
    both = Translator([one.model, short.model], one.tokenizers)
    (line,) = both.translate(["a b c d e"])
    assert "truncated to 3" in line.note
    assert len(line.tokens) <= 3


def test_an_ensemble_needs_members():
    with pytest.raises(ValueError, match="at least one"):
        Ensemble([])
    with pytest.raises(ValueError, match="expected one model or more, got none"):
        Translator([], small_translator().tokenizers)
