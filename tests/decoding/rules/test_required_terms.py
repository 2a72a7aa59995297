"""Terms that must occur: they do, wherever and in whatever pieces they are written."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sixfold.core.ids import BOS, EOS, MASK, PAD, UNK
from sixfold.decoding.engine import Job
from sixfold.decoding.rules.forbidden_words import ForbiddenWords
from sixfold.decoding.rules.required_terms import MustOccur
from sixfold.decoding.search.beam import Beam
from tests.support.chains import Places, find
from tests.support.writing import KINDS, favouring, occurs, tokenizer, write


def liking(tokens, *texts, end=1.0, other=0.0):
    """log p of next words that likes the tokens of texts, and the end."""
    scores = torch.full((len(tokens),), other, dtype=torch.float64)
    for much, text in enumerate(reversed(texts), 1):
        scores[tokens.encode(text)] = 10.0 + much
    scores[EOS] = end
    return scores.log_softmax(-1)


def allowed(rule, log_p, said, room):
    log_p = log_p.clone()
    rule.apply(log_p, said, room)
    return (log_p > -torch.inf).nonzero()[:, 0].tolist()


def test_no_end_before_the_term():
    words = tokenizer("words")
    rule, even = MustOccur(["dog"], words), torch.zeros(len(words))
    even[EOS] = -1.0  # no wish to end
    the, dog = words.encode("the dog")
    assert set(allowed(rule, even, (), 9)) == set(range(len(words))) - {EOS}
    assert len(allowed(rule, even, (the,), 2)) == len(words) - 1
    assert allowed(rule, even, (the,), 1) == [dog]  # just enough room
    assert len(allowed(rule, even, (the, dog), 1)) == len(words) - 3  # all but PAD, BOS and MASK
    assert len(allowed(rule, even, (the, dog, the), 1)) == len(words)
    assert [rule.progress(said) for said in ((), (the,), (the, dog), (dog, the))] == [0, 0, 1, 1]
    assert [list(rule.wants(said)) for said in ((the,), (the, dog))] == [[dog], []]


def test_where_the_model_would_end_the_terms_follow():
    words = tokenizer("words")
    log_p = torch.full((len(words), len(words)), -9.0)
    a, cat, sat, dog, mat = words.encode("a cat sat dog mat")
    for last, word in ((1, a), (a, cat), (cat, sat), (sat, EOS), (dog, a), (mat, EOS)):
        log_p[last, word] = -1.0
    assert words.decode(write([], log_p, 20)) == "a cat sat"
    log_p[sat, mat] = -7.0
    assert words.decode(write([MustOccur(["dog", "mat", "cat"], words)], log_p, 20)) == "a cat sat mat dog a cat sat"
    log_p[dog, EOS] = -0.5  # after the last term it goes on, or ends, as it likes
    assert words.decode(write([MustOccur(["dog", "mat", "cat"], words)], log_p, 20)) == "a cat sat mat dog"


def test_a_term_is_written_to_its_end():
    """Once begun where the model would have ended, it is not left for another word."""
    tokens = tokenizer("bytes")
    said = write([MustOccur(["dog"], tokens)], liking(tokens, "x", end=20.0), 50)
    assert tokens.decode(said) == "dog"
    said = write([MustOccur(["dog", "cat"], tokens)], liking(tokens, "x", end=20.0), 50)
    assert tokens.decode(said) in ("dog cat", "cat dog")


def following(tokens, *pairs):
    """log p of the next word by the last: of pairs of texts, the second follows the first."""
    scores = torch.zeros(len(tokens), len(tokens), dtype=torch.float64)
    for last, word in pairs:
        scores[tokens.encode(last) or BOS, tokens.encode(word) or EOS] = 10.0
    return scores.log_softmax(-1)


def test_once_it_would_have_ended_it_does_not_go_astray():
    """A term that was begun is written to its end, though the model knows better words with d."""
    tokens = tokenizer("bytes")
    log_p = following(tokens, ("", "a"), ("a", "."), (".", ""), (" ", "d"), ("d", "u"), ("u", "d"), ("o", "u"))
    assert tokens.decode(write([], log_p, 20)) == "a."
    assert tokens.decode(write([MustOccur(["dog"], tokens)], log_p, 20)).strip() in ("a.dog", "a. dog")


def test_what_another_rule_forbids_now_can_be_said_later():
    words = tokenizer("words")
    (dog,), would_end = words.encode("dog"), torch.zeros(len(words))
    would_end[EOS] = 1.0
    assert allowed(MustOccur(["dog"], words), would_end, (), 5) == [dog]
    would_end[dog] = -torch.inf
    assert set(allowed(MustOccur(["dog"], words), would_end, (), 5)) == set(range(len(words))) - {EOS, dog}
    assert allowed(MustOccur(["dog"], words), would_end, (), 1) == []  # but not so late


def test_half_a_character_ends_a_term():
    tokens = tokenizer("bytes")
    first, second = tokens.encode("é")
    assert EOS in allowed(MustOccur(["dog"], tokens), torch.zeros(len(tokens)), [*tokens.encode("dog"), first], 9)
    said = [*tokens.encode("dog"), first, second]
    assert EOS not in allowed(MustOccur(["dog"], tokens), torch.zeros(len(tokens)), said, 9)


@pytest.mark.parametrize("limit", range(3, 12))
def test_a_forbidden_word_is_finished_before_a_term_has_to_follow(limit):
    """ab ab ab … never stops at a, which would be a word."""
    tokens = tokenizer("bytes")
    log_p = following(tokens, ("", "a"), ("a", "b"), ("b", " "), (" ", "a"))
    forbidden = ForbiddenWords(["a"], tokens)
    text = tokens.decode(write([forbidden, MustOccur(["dog"], tokens, forbidden=forbidden)], log_p, limit))
    assert occurs("dog", text)
    assert not occurs("a", text)


def test_a_space_before_a_term_is_up_to_the_model():
    """Where a term may stand without one; but it is one space, and not all that there is room for."""
    tokens = tokenizer("bytes")
    end_of_sentence, likes_space = tokens.encode("a."), liking(tokens, " ", "d", end=20.0)
    for likes, text in ((likes_space, "a. dog"), (liking(tokens, "d", " ", end=20.0), "a.dog")):
        rule, said = MustOccur(["dog"], tokens), list(end_of_sentence)
        while (log_p := likes.clone()) is not None:
            rule.apply(log_p, said, 20 - len(said))
            if (word := int(log_p.argmax())) == EOS:
                break
            said.append(word)
        assert tokens.decode(said) == text


def test_just_enough_room():
    tokens = tokenizer("bytes")
    rule, likes = MustOccur(["dog", "cat"], tokens), liking(tokens, "x", end=-50.0)
    assert tokens.decode(write([rule], likes, 12)) in ("xxxx dog cat", "xxxx cat dog")
    assert tokens.decode(write([rule], likes, 7)) in ("dog cat", "cat dog")  # without a space at the beginning
    rule.check(7)
    with pytest.raises(ValueError, match="terms 'dog', 'cat' need 7 tokens, but at most 6 may be written"):
        rule.check(6)


def test_a_term_that_another_brings():
    tokens = tokenizer("bytes")
    assert MustOccur(["York", "New York", "York"], tokens).describe() == "must say 'New York'"
    MustOccur(["York", "New York", "York"], tokens).check(8)
    MustOccur(["York", "New Yorker"], tokens).check(15)
    with pytest.raises(ValueError, match="need 15 tokens"):
        MustOccur(["York", "New Yorker"], tokens).check(14)


def test_it_may_be_written_in_other_pieces_and_other_company():
    tokens = tokenizer("bpe")
    letters = [id_ for c in "a dog." for id_ in tokenizer("bytes").encode(c)]
    rule = MustOccur(["dog"], tokens)
    even = torch.zeros(len(tokens))
    assert tokens.decode(letters) == "a dog."
    assert len(letters) > len(tokens.encode("a dog."))
    assert EOS in allowed(rule, even, letters, 1)
    assert EOS in allowed(rule, even, letters[:-1], 1)
    assert EOS not in allowed(rule, even, [*letters[:-1], *tokenizer("bytes").encode("s")], 9)  # dogs
    assert rule.progress(letters) == rule.progress(tokens.encode(" dog"))


def test_an_unknown_word_is_a_word():
    words = tokenizer("words")
    (the, cat), even = words.encode("the cat"), torch.zeros(len(words))
    assert EOS in allowed(MustOccur(["the cat"], words), even, (the, cat), 9)
    assert EOS not in allowed(MustOccur(["the cat"], words), even, (the, UNK, cat), 9)


def test_signs_and_scripts_without_spaces_need_no_space():
    tokens = tokenizer("bytes")
    likes = liking(tokens, "x", end=-50.0)
    assert tokens.decode(write([MustOccur(["猫"], tokens)], likes, 6)) == "xxx猫"
    assert tokens.decode(write([MustOccur(["dog"], tokens)], likes, 6)) == "xx dog"
    assert tokens.decode(write([MustOccur(["(dog"], tokens)], likes, 6)) == "xx(dog"


def test_progress_counts_what_was_begun():
    tokens = tokenizer("bytes")
    rule = MustOccur(["dog", "door"], tokens)
    texts = ("", " ", " d", " do", " doo", " dog", " dogs", " dog d", " dog door", "ado")
    assert [rule.progress(tokens.encode(text)) for text in texts] == [1, 1, 2, 3, 4, 4, 0, 6, 9, 0]
    wanted = {text: tokens.decode(rule.wants(tokens.encode(text))) for text in (" do", " dog", "ado", " dog door")}
    assert {text: set(letters) for text, letters in wanted.items()} == {
        " do": set(" og") | set("g") | set(" "),
        " dog": {" "},
        "ado": {" "},
        " dog door": set(),
    }


def test_after_a_prefix():
    tokens = tokenizer("bytes")
    rule = MustOccur(["dog"], tokens, after=tokens.encode("the do"))
    even = torch.zeros(len(tokens))
    assert len(allowed(rule, even, tokens.encode("the"), 1)) == len(tokens)  # not its turn
    assert list(rule.wants(tokens.encode("the"))) == []
    assert allowed(rule, even, tokens.encode("the do"), 1) == tokens.encode("g")
    rule.check(7)
    with pytest.raises(ValueError, match="the prefix and the terms 'dog' need 7"):
        rule.check(6)


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        *((kind, method) for kind in ("words", "bpe") for method in (Beam(1), Beam(2), Beam(4, groups=4))),
        *(("bytes", method) for method in (Beam(2), Beam(3), Beam(4, groups=2))),
    ],
    ids=lambda each: each if isinstance(each, str) else f"{each.groups} of {each.size // each.groups}",
)
@pytest.mark.parametrize("term", ["the", "cat", "sat"])
def test_a_narrow_beam_does_not_stutter(kind, method, term):
    """The model would say the term by itself; said too early to please the rule, it would be said again there."""
    tokens, text = tokenizer(kind), "the cat sat"
    ids = [*tokens.encode(text), EOS]
    scores = torch.zeros(len(ids), len(tokens), dtype=torch.float64)
    scores[range(len(ids)), ids] = 9.0
    job = Job(limit=len(ids) + 9, rules=(MustOccur([term], tokens),))
    ((found,),) = find(Places(scores.log_softmax(-1)), method, job, never=(PAD, BOS, UNK, MASK))
    assert tokens.decode(found.tokens) == text


@given(
    kind=st.sampled_from(KINDS),
    terms=st.lists(
        st.sampled_from(["cat", "cats", "a", "the cat", "cat sat", "sat on", "cat,", "mat, and", "dog."]),
        min_size=1,
        max_size=4,
    ),
    room=st.integers(0, 20),
    end=st.sampled_from([-20.0, 0.0, 5.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_there_is_always_a_way_and_every_term_is_there(kind, terms, room, end, seed):
    tokens = tokenizer(kind)
    rule = MustOccur(terms, tokens)
    limit = rule._terms.need(rule._walk(())) + room
    rule.check(limit)
    log_p = favouring(tokens, seed, "the cat sat on the mat a dog cats")
    log_p[:, EOS] += end
    said = write([rule], log_p, limit)
    assert said is not None
    text = tokens.decode(said)
    assert all(occurs(term, text) for term in terms), text
    assert rule.progress(said) == rule._terms.most(rule._walk(()))
    assert list(rule.wants(said)) == []
