"""How texts are chosen for training, and how the pieces of a unigram model are."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from sixfold.text.tokenizer import KINDS
from sixfold.text.unigram import Lattice, _inside, _log_probability, _seed, train_unigram
from sixfold.text.vocabulary import EvenSample, TokenizerTrainer, train_tokenizer
from tests.support.trained_tokenizers import EXACT, SIZE, TEXTS


def evenly(texts, most_texts, most_characters):
    sample = EvenSample(most_texts, most_characters)
    sample.update(texts)
    return sample.take()


def test_few_texts_are_all_taken():
    assert evenly(iter("abc"), 3, 3) == ["a", "b", "c"]


@pytest.mark.parametrize("step", [1, 2, 3, 8])
def test_many_texts_are_taken_evenly_however_sources_take_turns(step):
    """Of 10,000 texts from `step` sources in turn, each source and each tenth of the whole has its share."""
    kept = [int(text) for text in evenly(map(str, range(10_000)), 1000, 10**9)]
    assert 500 <= len(kept) <= 1000
    assert kept == sorted(kept)
    for shares in (np.bincount([n % step for n in kept]), np.bincount([n // 1000 for n in kept])):
        assert shares.min() > 0.8 * shares.mean()


def test_long_texts_are_bounded_by_their_characters():
    kept = evenly(["x" * 100] * 1000, 10**9, 5000)
    assert 25 <= len(kept) <= 50
    assert len(evenly(["x" * 100] * 10, 10**9, 1)) == 1


def test_texts_in_portions_are_the_same_sample():
    texts = ["x" * (i * 37 % 50) for i in range(2000)]
    for most_texts, most_characters in ((300, 10**9), (10**9, 3000), (1, 1), (5000, 10**9)):
        sample = EvenSample(most_texts, most_characters)
        for start in range(0, len(texts), 7):
            sample.update(iter(texts[start : start + 7]))
        assert sample.take() == evenly(texts, most_texts, most_characters)
        assert sample.take() == []


@pytest.mark.parametrize("kind", KINDS)
def test_texts_in_portions_are_the_same_tokenizer(kind, monkeypatch):
    monkeypatch.setattr("sixfold.text.vocabulary._MOST_TEXTS", 10)
    size = SIZE if kind in EXACT else None
    trainer = TokenizerTrainer(kind, size)
    for start in range(0, len(TEXTS), 4):
        trainer.update(TEXTS[start : start + 4])
    assert trainer.finish().text == train_tokenizer(kind, iter(TEXTS), size).text


def test_what_a_trainer_can_not_do_is_said_before_any_text():
    with pytest.raises(ValueError, match="a vocabulary of 260 is too small: bpe needs at least 261 ids"):
        TokenizerTrainer("bpe", 260)
    with pytest.raises(ValueError, match="there is no tokenizer 'sentences'"):
        TokenizerTrainer("sentences")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bytes"])
def test_without_any_text_there_is_no_vocabulary(kind):
    trainer = TokenizerTrainer(kind)
    trainer.update(["", ""])
    with pytest.raises(ValueError, match=f"no text to train a tokenizer of kind {kind} on"):
        trainer.finish()
    trainer.update([" "])
    assert trainer.finish().kind == kind


def one_word() -> tuple[Lattice, list[bytes]]:
    """The word "abc", seen twice, and the pieces a b c ab bc."""
    pieces = [b"a", b"b", b"c", b"ab", b"bc"]
    edges = [(0, 1, 0), (1, 2, 1), (2, 3, 2), (0, 2, 3), (1, 3, 4)]
    start, end, piece = np.array(edges).T
    return Lattice.of(np.array([3]), np.array([2.0]), start, end, piece), pieces


def test_expected_counts_by_hand():
    """a·b·c has probability 1/8 · 1/8 · 1/4 = 1/256, ab·c 1/4 · 1/4 = 16/256, a·bc 1/8 · 1/4 = 8/256; sum 25/256."""
    lattice, _ = one_word()
    scores = np.log([1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 4])
    expected = [2 * n / 25 for n in (1 + 8, 1, 1 + 16, 16, 8)]
    assert lattice.expected(scores) == pytest.approx(expected)
    assert lattice.best(scores) == pytest.approx([log(1 / 16)])
    kept = np.array([True, True, True, False, True])
    assert lattice.with_pieces(kept).expected(scores[kept]) == pytest.approx([2, 2 / 9, 2 / 9, 2 * 8 / 9])


def test_a_piece_is_cut_otherwise_than_by_itself():
    pieces = [b"a", b"b", b"ab", b"abb"]
    best = _inside(pieces).best(np.array([-1.0, -2.0, -2.5, -3.0]))
    assert best.tolist() == [-np.inf, -np.inf, -3.0, -4.5]


def test_seeds_are_repeated_parts_of_whole_characters():
    """In "猫b" twice and "猫c" once: 猫 (three bytes) and 猫b repeat, parts of 猫 are no pieces, 猫c is seen once."""
    cat = "猫".encode()
    lattice, pieces, weights = _seed({cat + b"b": 2, cat + b"c": 1}, 10_000)
    assert dict(zip(pieces[256:], weights[256:], strict=True)) == {cat: 3 * 3, cat + b"b": 4 * 2}
    assert lattice.expected(np.log(weights)) @ [len(piece) for piece in pieces] == pytest.approx(3 * 4)
    assert (weights[cat[0]], weights[ord("b")], weights[ord("c")]) == (3, 2, 1)


def test_log_probability_is_that_of_digamma():
    """ψ(1) = −γ, ψ(2) = 1 − γ, ψ(3) = 3/2 − γ."""
    assert _log_probability(np.array([1.0, 2.0])) == pytest.approx([-1.5, -0.5])


def test_the_pieces_that_text_needs_most_are_found():
    stems, ends = ["walk", "talk", "jump", "play"], ["", "ing", "ed", "s"]
    words = {f" {stem}{end}".encode(): 10 for stem in stems for end in ends}
    found = train_unigram(words, 256 + 8)
    assert {f" {stem}".encode() for stem in stems} <= {*found}
    assert [*found][:256] == [bytes([byte]) for byte in range(256)]
    assert len(found) == 256 + 8
    assert 0.5 < sum(exp(score) for score in found.values()) <= 1.01


def test_long_words_do_not_hurt():
    found = train_unigram({b"ab" * 5000: 3, "猫".encode() * 1000: 1}, 300)
    assert b"ab" * 8 in found
    assert "猫".encode() in {piece[:3] for piece in found}
