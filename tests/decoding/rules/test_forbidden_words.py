"""Words that are never said: in the text, whatever the pieces."""

from functools import reduce
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sixfold.core.ids import CONTROLS, EOS
from sixfold.decoding.rules.forbidden_words import FAR, ForbiddenWords
from sixfold.decoding.rules.phrase_automaton import Phrases, Walk, is_letter
from sixfold.text.vocabulary import train_tokenizer
from tests.support.writing import KINDS, favouring, occurs, tokenizer, write


def found(phrases, text):
    return [phrases[number] for number in sorted(Phrases(phrases).find(text))]


@pytest.mark.parametrize("text", ["cat", "a cat.", "cat-like", "«cat»", "cats cat", "concat\ncat", "cat🐈", "cat_"])
def test_a_whole_word(text):
    assert found(["cat"], text) == ["cat"]
    assert occurs("cat", text)


@pytest.mark.parametrize("text", ["", "ca", "cats", "concat", "cat2", "Cat", "cat\u0301", "ca t", "écat"])
def test_no_whole_word(text):
    assert found(["cat"], text) == []
    assert not occurs("cat", text)


def test_phrases_with_signs_and_spaces():
    assert found(["$5", "C++", "New York"], "US$5 for C++x in New York!") == ["$5", "C++", "New York"]
    assert found(["$5", "C++", "New York"], "$50 for AC++ in New Yorker, NewYork") == []
    assert found(["a", "a b", "b a", "a b a"], "a b a") == ["a", "a b", "b a", "a b a"]
    assert found(["aab"], "a aab aaab") == ["aab"]


def test_scripts_without_spaces_have_words_anywhere():
    assert found(["猫", "ねこ"], "黒猫がねこに") == ["猫", "ねこ"]
    assert found(["iPhone"], "我的iPhone很好") == ["iPhone"]
    assert found(["แมว"], "มีแมวอยู่") == ["แมว"]
    assert found(["고양이"], "고양이는") == []  # Korean has spaces
    assert [is_letter(c) for c in "aé५ß가猫 ー_-"] == [True] * 5 + [False] * 5


@given(
    st.lists(st.text("ab. é", min_size=1, max_size=4), min_size=1, max_size=4, unique=True),
    st.text("ab. é", max_size=12),
)
def test_finding_is_looking_at_every_place(phrases, text):
    assert found(phrases, text) == [phrase for phrase in phrases if occurs(phrase, text)]


def test_a_walk_is_the_same_from_anywhere():
    walk = Walk(0, lambda state, token: 10 * state + token)
    assert [walk(said) for said in ([], [1], (1, 2), (1, 2, 3), (4, 5, 6), [4, 5, 6, 7])] == [0, 1, 12, 123, 456, 4567]


# The rule -----------------------------------------------------------------------------------------------


def allowed(rule, tokens, text, room=10):
    """The pieces that may follow a text."""
    log_p = torch.zeros(len(tokens))
    rule.apply(log_p, tokens.encode(text), room)
    ids = (log_p == 0).nonzero()[:, 0].tolist()
    return {
        "EOS" if id_ == EOS else tokens.spellings()[id_].decode(errors="replace")
        for id_ in ids
        if id_ >= len(CONTROLS) or id_ == EOS
    }


def test_letter_by_letter():
    tokens = tokenizer("bytes")
    rule = ForbiddenWords(["cat"], tokens)
    everything = allowed(rule, tokens, "")
    assert len(everything) >= 129  # what is no character looks all the same
    assert allowed(rule, tokens, "ca") == everything
    letters = {c for c in map(chr, range(128)) if c.isalnum()}
    assert allowed(rule, tokens, "a cat") == letters | {"\ufffd"}  # it must become another word
    assert allowed(rule, tokens, "a cat", room=1) == letters
    assert allowed(rule, tokens, "ca", room=1) == everything - {"t"}  # it could not
    assert allowed(rule, tokens, "a ca", room=0) == everything - {"t"}
    assert allowed(rule, tokens, "cats") == everything
    assert allowed(rule, tokens, "a cat!") == set()


def test_half_a_character_ends_a_word():
    tokens = tokenizer("bytes")
    rule = ForbiddenWords(["cat"], tokens)
    first, second = (len(CONTROLS) + byte for byte in "é".encode())
    log_p = torch.zeros(len(tokens))
    rule.apply(log_p, [*tokens.encode("cat"), first], 9)
    assert log_p[second] == 0
    assert log_p[[EOS, *tokens.encode("s ")]].tolist() == [-torch.inf] * 3
    rule.apply(log_p := torch.zeros(len(tokens)), [*tokens.encode("cat"), first, second], 9)
    assert log_p[EOS] == 0


def test_words_that_could_not_be_left_again():
    tokens = tokenizer("words")
    rule = ForbiddenWords(["cat", "the dog"], tokens)
    everything = {f" {word}" for text in tokens._rust.get_vocab() for word in [text] if " " not in text} | {"EOS"}
    assert allowed(rule, tokens, "") == everything - {" cat", " cat,"}  # a comma is no part of the word
    assert allowed(rule, tokens, "the") == everything - {" cat", " cat,", " dog", " dog."}
    assert allowed(rule, tokens, "on") == everything - {" cat", " cat,"}


def test_two_letters_to_get_away():
    tokens = tokenizer("bytes")
    rule = ForbiddenWords(["a", *("a" + chr(c) for c in range(0x110000) if is_letter(chr(c)) and c < 128)], tokens)
    assert "EOS" not in allowed(rule, tokens, "a", room=2)
    assert "b" in allowed(rule, tokens, "a", room=2)
    assert "b" not in allowed(rule, tokens, "a", room=1)  # ab is forbidden as well
    assert "a" in allowed(rule, tokens, "", room=3)
    assert "a" not in allowed(rule, tokens, "", room=1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_mask_is_what_one_token_more_would_do(kind):
    """All ids at once = each by itself."""
    tokens = tokenizer(kind)
    texts = ForbiddenWords(["cat", "the mat", "sat\ufffd", "猫"], tokens)._texts
    starts = [tokens.encode(text) for text in ("", "c", "the", "the cat", "sat", "a")]
    halves = [[], *([5 + byte] for byte in (0x80, 0xC3, 0xE7, 0xF1))] if tokens.spells else [[]]
    for start, half in product(starts, halves):
        state = reduce(texts.after, start + half, texts.start)
        ways = texts.ways_out(state).tolist()
        each = [texts.way_out(texts.after(state, id_)) for id_ in range(len(tokens))]
        each[EOS] = -1 if texts.may_end(state) else FAR
        assert ways == each


def test_what_half_a_character_may_become():
    phrases = Phrases(["猫"])
    missing, codes = phrases.completed("猫".encode()[:2])
    assert (missing, set(codes)) == (1, {phrases.OTHER, phrases.code("猫")})  # its neighbours are like signs
    assert phrases.completed("é".encode()[:1]) == (1, [phrases.OTHER, phrases.LETTER])  # ÷ and é
    assert phrases.completed("д".encode()[:1]) == (1, [phrases.LETTER])
    assert phrases.completed(b"\xf4") == (3, [phrases.OTHER])


@given(
    kind=st.sampled_from(KINDS),
    words=st.lists(
        st.sampled_from(["cat", "a", "the cat", "s", "sat on", "c", "t.", "d", "é"]), min_size=1, max_size=4
    ),
    limit=st.integers(0, 25),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_there_is_always_a_way_and_never_a_forbidden_word(kind, words, limit, seed):
    tokens = tokenizer(kind)
    said = write([ForbiddenWords(words, tokens)], favouring(tokens, seed, "the cat sat on the mat a c at. Ã©"), limit)
    assert said is not None
    text = tokens.decode(said)
    assert not [word for word in words if occurs(word, text)], text


def test_many_words_in_a_vocabulary_of_characters():
    """Thousands of different characters are a few codes."""
    characters = [chr(0x4E00 + i) for i in range(3000)]
    tokens = train_tokenizer("characters", ["".join(characters)])
    rule = ForbiddenWords([a + b for a, b in zip(characters[::2], characters[1::2], strict=True)], tokens)
    log_p = torch.zeros(len(tokens))
    rule.apply(log_p, tokens.encode(characters[10]), 5)
    assert (log_p == -torch.inf).nonzero()[:, 0].tolist() == tokens.encode(characters[11])


def test_what_it_is_called():
    tokens = tokenizer("bytes")
    assert ForbiddenWords(["cat", " cat "], tokens).describe() == "never say 'cat'"
    assert ForbiddenWords(list("abcde"), tokens).describe() == "never say 'a', 'b', 'c' and 2 more"
