"""Likelihoods: one pass over many texts equals asking for one word after the other."""

import math

import pytest
import torch

import sixfold
from sixfold.core.ids import UNK
from sixfold.scoring import likelihood as module
from sixfold.scoring.likelihood import Likelihood, likelihood, perplexity, token_log_probs
from sixfold.text.tokenizer import Tokenizers
from sixfold.text.vocabulary import train_tokenizer
from tests.support.small import moved_model, pad

BYTES = train_tokenizer("bytes", [])
WORDS = train_tokenizer("words", ["one two three four", "one two", "three four"])
PAIRS = [("one", "eins zwei"), ("", "Größe"), ("two three four five six", "x"), ("a", ""), ("one two", "zwei eins ja")]
HEADS = [(), ("mixture_of_softmaxes",), ("adaptive_softmax",), ("untied",)]
BOTH = Tokenizers(BYTES, BYTES)


def bytes_model(kind="encoder_decoder", modifications=(), **options):
    return moved_model(kind, modifications, vocab=len(BYTES), **options)


@torch.inference_mode()
def word_by_word(model, source, target):
    """Σ log p of each token of the target and of its end, with a pass for each."""
    total, said = 0.0, [sixfold.BOS]
    for word in [*BYTES.encode(target), sixfold.EOS]:
        memory = () if source is None else (model.encode(torch.tensor([[*BYTES.encode(source), sixfold.EOS]])),)
        x = model.decode(torch.tensor([said]), *memory)
        total += float(model.log_probs(x[:, -1])[0, word])
        said.append(word)
    return total


@pytest.mark.parametrize("modifications", HEADS, ids=lambda m: "-".join(m) or "vanilla")
def test_it_is_the_sum_of_what_is_said_word_by_word(modifications):
    model = bytes_model(modifications=modifications)
    found = [*likelihood(model, BOTH, PAIRS, 60)]
    assert [each.log_prob for each in found] == pytest.approx([word_by_word(model, *p) for p in PAIRS], abs=1e-9)
    assert [each.tokens for each in found] == [10, 8, 2, 1, 13]
    assert [each.bytes for each in found] == [9, 7, 1, 0, 12]


@pytest.mark.parametrize("modifications", HEADS, ids=lambda m: "-".join(m) or "vanilla")
def test_it_is_what_training_minimises(modifications):
    model = bytes_model(modifications=modifications)
    for found, (source, target) in zip(likelihood(model, BOTH, PAIRS), PAIRS, strict=True):
        ids = BYTES.encode(target)
        losses = model(
            sixfold.Batch(
                *(torch.tensor([row]) for row in ([*BYTES.encode(source), sixfold.EOS], [sixfold.BOS, *ids])),
                targets=torch.tensor([[*ids, sixfold.EOS]]),
            )
        )
        assert found.log_prob == pytest.approx(-losses.sum.item(), abs=1e-9)
        assert found.tokens == losses.tokens.item()


def test_all_together_they_are_the_loss_of_the_padded_batch():
    model = bytes_model()
    ids = [[BYTES.encode(text) for text in pair] for pair in PAIRS]
    rows = [
        pad([torch.tensor([*before, *pair[side], *after]) for pair in ids])
        for side, before, after in ((0, (), (2,)), (1, (1,), ()), (1, (), (2,)))
    ]
    losses = model(sixfold.Batch(*rows))
    total = perplexity(likelihood(model, BOTH, PAIRS))
    assert total.log_prob == pytest.approx(-losses.sum.item(), abs=1e-9)
    assert total.tokens == losses.tokens.item()
    assert total.per_token == pytest.approx(math.exp(losses.sum.item() / losses.tokens.item()))


def test_a_decoder_alone_needs_no_source():
    model = bytes_model("decoder_only")
    found = likelihood(model, BOTH, [(None, target) for _, target in PAIRS], 30)
    expected = [word_by_word(model, None, target) for _, target in PAIRS]
    assert [each.log_prob for each in found] == pytest.approx(expected, abs=1e-9)


def test_batches_and_windows_make_no_difference(monkeypatch):
    model = bytes_model()
    whole = [*likelihood(model, BOTH, PAIRS)]
    alone = [*likelihood(model, BOTH, PAIRS, 24)]
    monkeypatch.setattr(module, "_WINDOW", 2)
    windows = [*likelihood(model, BOTH, PAIRS)]
    monkeypatch.setattr(module, "CHUNK", 3)
    chunks = [*likelihood(model, BOTH, PAIRS)]
    for others in (alone, windows, chunks):
        assert [each.log_prob for each in others] == pytest.approx([each.log_prob for each in whole], abs=1e-9)
        assert [each[1:] for each in others] == [each[1:] for each in whole]


def test_a_batch_holds_no_more_tokens_than_it_may(monkeypatch):
    model, seen = bytes_model(), []
    encode, decode = model.encode, model.decode
    monkeypatch.setattr(model, "encode", lambda ids: seen.append(ids.numel()) or encode(ids))
    monkeypatch.setattr(model, "decode", lambda ids, memory: seen.append(ids.numel()) or decode(ids, memory))
    assert len([*likelihood(model, BOTH, PAIRS * 5, 50)]) == 25
    assert 25 < max(seen) <= 50


def test_lines_are_read_as_they_are_needed(monkeypatch):
    monkeypatch.setattr(module, "_WINDOW", 2)
    lines = iter(PAIRS)
    next(likelihood(bytes_model(), BOTH, lines))
    assert list(lines) == PAIRS[2:]


def test_tokens_one_by_one():
    model = bytes_model()
    source, target = ([BYTES.encode(text)] for text in PAIRS[0])
    (found,) = token_log_probs(model, source, target)
    assert len(found) == 10
    assert sum(found[:4]) + found[-1] != pytest.approx(word_by_word(model, "one", "eins"), abs=1e-3)  # another end
    whole = word_by_word(model, *PAIRS[0])
    assert sum(found) == pytest.approx(whole, abs=1e-9)


def test_the_model_is_left_as_it_was_between_texts():
    model = bytes_model(dropout=0.5)
    quiet = [each.log_prob for each in likelihood(model, BOTH, PAIRS)]
    model.train()
    for found, expected in zip(likelihood(model, BOTH, PAIRS), quiet, strict=True):
        assert found.log_prob == pytest.approx(expected, abs=1e-9)
        assert model.training
        assert not torch.is_inference_mode_enabled()


def test_unknown_words_are_scored_as_unknown_and_noted():
    model = moved_model(vocab=len(WORDS))
    known, unknown = likelihood(model, Tokenizers(WORDS, WORDS), [("one", "one two"), ("one", "one huh two")])
    assert known.note == ""
    assert unknown.note == "1 of 3 tokens are not in the vocabulary and were scored as unknown"
    one, two = WORDS.encode("one two")
    (expected,) = token_log_probs(model, [[one]], [[one, UNK, two]])
    assert unknown.log_prob == pytest.approx(sum(expected), abs=1e-9)
    assert perplexity([known, unknown]).unknown == 1


@pytest.mark.parametrize(
    ("kind", "pairs", "message"),
    [
        ("encoder_decoder", [("a", "b"), ("ab" * 5, "b")], "line 2: the source has 11 tokens with EOS.* only 10"),
        ("encoder_decoder", [("a", "b"), ("a", "b"), ("", "ä" * 5)], "line 3: the target has 11 tokens.* only 10"),
        ("decoder_only", [(None, "ab" * 5)], "line 1: the target has 11 tokens with EOS.* only 10"),
        ("encoder_decoder", [("a", "b"), (None, "b")], "line 2: .* needs a source for each target, got None"),
        ("decoder_only", [("a", "b")], "line 1: .* reads no source: give None, got 'a'"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_line(kind, pairs, message, monkeypatch):
    monkeypatch.setattr(module, "_WINDOW", 2)
    model = bytes_model(kind, ("learned_positions:length=10",))
    with pytest.raises(ValueError, match=message):
        list(likelihood(model, BOTH, pairs))
    fitting = [(source and source[:9], target[:9]) for source, target in PAIRS[2:]]
    fitting = fitting if kind == "encoder_decoder" else [(None, target) for _, target in fitting]
    assert len([*likelihood(model, BOTH, [*fitting, (fitting[0][0], "x" * 9)])]) == 4


def test_a_line_of_more_tokens_than_a_batch_is_refused():
    with pytest.raises(ValueError, match=r"line 2: the target has 100,001 tokens .* batch_tokens \(4,096\)"):
        list(likelihood(bytes_model(), BOTH, [("a", "b"), ("a", "x" * 100_000)]))


def test_bad_models_and_budgets_are_refused_at_once():
    with pytest.raises(ValueError, match="this one is encoder_only"):
        likelihood(bytes_model("encoder_only"), BOTH, [])
    with pytest.raises(ValueError, match=r"the source tokenizer has .* ids, but the model was made for 50"):
        likelihood(moved_model(), Tokenizers(WORDS, WORDS), [])
    with pytest.raises(ValueError, match="batch_tokens must be positive, got 0"):
        likelihood(bytes_model(), BOTH, [], 0)


def test_perplexity_by_hand():
    # 3 + 1 bits for 2 tokens and 1 byte, 4 bits for 2 tokens and 3 bytes
    total = perplexity([Likelihood(-4 * math.log(2), 2, 1), Likelihood(-4 * math.log(2), 2, 3)])
    assert total.per_token == pytest.approx(4.0)
    assert total.bits_per_byte == pytest.approx(2.0)
    assert Likelihood(-4 * math.log(2), 2, 1).perplexity == pytest.approx(4.0)
    assert total.json()["perplexity"] == total.per_token
    assert perplexity([Likelihood(-1.0, 1, 0)]).bits_per_byte is None
    with pytest.raises(ValueError, match="nothing to score"):
        perplexity([])
