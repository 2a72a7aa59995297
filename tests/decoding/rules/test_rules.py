"""Each rule by hand, what contradicts what, and rules in company: no output ever breaks one."""

import math
from contextlib import suppress
from functools import cache, partial

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sixfold.config.schema import Decoding
from sixfold.core.ids import BOS, EOS, MASK, PAD, UNK
from sixfold.decoding.job import Impossible, Job
from sixfold.decoding.rules.make import make_rules
from sixfold.decoding.rules.rule import (
    CoveragePenalty,
    ForcedPrefix,
    MinimumLength,
    NoRepeatedNgram,
    RepetitionPenalty,
    Rule,
)
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.search.sample import Sample
from tests.support.chains import Chain, find
from tests.support.writing import KINDS, favouring, occurs, tokenizer, write

A, B, C = 3, 4, 5
INF = math.inf

# Likes to end, then A, B, C, whatever was said.
LIKES = torch.tensor([-INF, -INF, math.log(0.4), math.log(0.3), math.log(0.2), math.log(0.1)], dtype=torch.float64)


def after(rule, *said, room=10):
    """The log-probabilities after some tokens, under a rule."""
    log_p = LIKES.clone()
    rule.apply(log_p, said, room)
    return log_p.tolist()


def open_words(log_p):
    return [word for word, value in enumerate(log_p) if value > -INF]


# By hand ----------------------------------------------------------------------------------------------


def test_a_rule_that_says_nothing_changes_nothing():
    rule = Rule()
    rule.check(0)
    assert after(rule, A) == LIKES.tolist()
    assert (rule.progress([A]), list(rule.wants([A])), rule.final([A], None)) == (0, [], 0.0)


def test_minimum_length():
    rule = MinimumLength(2)
    assert open_words(after(rule)) == open_words(after(rule, A)) == [A, B, C]
    assert after(rule, A, A) == LIKES.tolist()
    assert write([rule], LIKES, 10) == [A, A]
    rule.check(2)
    with pytest.raises(ValueError, match="at least 2 tokens, but at most 1 may be written"):
        rule.check(1)


def test_no_repeated_ngram():
    two = NoRepeatedNgram(2)
    assert after(two) == after(two, A) == after(two, A, B) == LIKES.tolist()
    assert open_words(after(two, A, B, A)) == [EOS, A, C]  # A B was said
    assert open_words(after(two, A, B, A, A)) == [EOS, C]  # A A, too
    assert open_words(after(NoRepeatedNgram(1), A, C)) == [EOS, B]
    assert open_words(after(NoRepeatedNgram(3), A, B, A, B)) == [EOS, B, C]
    assert after(NoRepeatedNgram(3), A, A) == LIKES.tolist()
    assert open_words(after(NoRepeatedNgram(3), A, A, A)) == [EOS, B, C]
    assert write([MinimumLength(5), two], LIKES, 10) == [A, A, B, A, C]
    assert not two.breaks([A, A, B, A], over=True)
    assert two.breaks([A, A, A], over=False)


def test_repetition_penalty():
    assert after(RepetitionPenalty(2.0)) == LIKES.tolist()
    log_p = after(RepetitionPenalty(2.0), B, B)
    assert log_p[B] == pytest.approx(2 * math.log(0.2))  # once, however often it was said
    assert log_p[:B] + log_p[B + 1 :] == [*LIKES[:B].tolist(), *LIKES[B + 1 :].tolist()]


def test_forced_prefix():
    rule = ForcedPrefix([C, B])
    assert after(rule) == [-INF] * 5 + [LIKES[C]]
    assert open_words(after(rule, C)) == [B]
    assert after(rule, C, B) == LIKES.tolist()
    assert write([rule], LIKES, 10) == [C, B]
    rule.check(2)
    with pytest.raises(ValueError, match="prefix has 2 tokens, but at most 1"):
        rule.check(1)


def test_coverage_penalty():
    rule = CoveragePenalty(0.5)
    assert rule.needs_attention
    assert rule.final([A], torch.tensor([1.0, 3.0])) == 0  # more than all is no better than all
    assert rule.final([A], torch.tensor([0.5, 0.25, 2.0])) == pytest.approx(0.5 * math.log(0.5 * 0.25))
    assert -INF < rule.final([A], torch.tensor([0.0, 1.0])) < -1
    with pytest.raises(ValueError, match="needs attention weights"):
        rule.final([A], None)


@pytest.mark.parametrize(
    "make",
    [lambda: MinimumLength(-1), lambda: NoRepeatedNgram(0), lambda: RepetitionPenalty(0), lambda: CoveragePenalty(-1)],
)
def test_numbers_that_make_no_sense(make):
    with pytest.raises(ValueError, match=r"-1|0"):
        make()


# Making them ------------------------------------------------------------------------------------------


def test_nothing_asked_is_no_rule():
    assert make_rules(Decoding(), tokenizer("bpe"), prefix=None, terms=()) == ()
    assert make_rules(Decoding(), tokenizer("bpe"), prefix="", terms=[]) == ()


def test_each_wish_is_a_rule():
    decoding = Decoding(
        min_length=3,
        no_repeat_ngram_size=2,
        forbidden_words=["dog"],
        repetition_penalty=1.2,
        coverage_penalty=0.2,
        beam_size=2,
    )
    rules = make_rules(decoding, tokenizer("bpe"), prefix="a cat", terms=["mat"])
    names = "RepetitionPenalty MinimumLength NoRepeatedNgram ForbiddenWords ForcedPrefix MustOccur CoveragePenalty"
    assert [type(rule).__name__ for rule in rules] == names.split()
    assert all(rule.describe() for rule in rules)


def test_what_is_expensive_is_made_once():
    decoding = Decoding(forbidden_words=["dog", "cat"])
    one, other = (make_rules(decoding, tokenizer("bpe"), terms=["mat"]) for _ in range(2))
    assert one[0] is other[0]
    assert one[1] is not other[1]  # it remembers things of its output
    assert one[1]._terms is other[1]._terms


@pytest.mark.parametrize("kind", KINDS)
def test_demands_that_contradict_each_other(kind):
    make = partial(make_rules, tokenizer=tokenizer(kind))
    forbidden = Decoding(forbidden_words=["cat"])
    with pytest.raises(ValueError, match=r"term 'the cat sat' can't be written.*never say 'cat'"):
        make(forbidden, terms=["dog", "the cat sat"])
    with pytest.raises(ValueError, match="term 'cat'"):
        make(forbidden, terms=["cat"])
    assert make(forbidden, terms=["cats"])
    with pytest.raises(ValueError, match=r"prefix 'the cat sat' can't be written.*never say 'cat'"):
        make(forbidden, prefix="the cat sat")
    if kind == "words":
        with pytest.raises(ValueError, match="prefix 'the cat'"):
            make(forbidden, prefix="the cat")
    else:
        assert make(forbidden, prefix="the cat")  # it may become cats
    with pytest.raises(ValueError, match=r"prefix 'the the the the' can't be written.*no 2 tokens in a row twice"):
        make(Decoding(no_repeat_ngram_size=2), prefix="the the the the")
    with pytest.raises(ValueError, match=r"term 'sat sat sat sat'.*no 2 tokens in a row twice"):
        make(Decoding(no_repeat_ngram_size=2), terms=["sat sat sat sat"])


def test_what_no_output_can_have():
    with pytest.raises(ValueError, match="prefix 'the zebra' has words that are not in the vocabulary"):
        make_rules(Decoding(), tokenizer("words"), prefix="the zebra")
    with pytest.raises(ValueError, match="term 'zebra' has words that are not in the vocabulary"):
        make_rules(Decoding(), tokenizer("words"), terms=["zebra"])
    with pytest.raises(ValueError, match="terms must be a list, got one text: 'cat'"):
        make_rules(Decoding(), tokenizer("words"), terms="cat")
    for wishes in ({"terms": ["cat", " "]}, {"decoding": Decoding(forbidden_words=[""])}):
        with pytest.raises(ValueError, match="must not be empty"):
            make_rules(**{"decoding": Decoding(), "tokenizer": tokenizer("words"), **wishes})


def test_prefix_and_terms_together_must_fit():
    words = tokenizer("words")
    (prefix, terms) = make_rules(Decoding(), words, prefix="the cat", terms=["dog", "cat"])
    prefix.check(2)
    terms.check(3)  # the cat is there
    with pytest.raises(ValueError, match="the prefix and the terms 'dog', 'cat' need 3 tokens, but at most 2"):
        terms.check(2)
    assert words.decode(write([prefix, terms], favouring(words, 0, "mat sat"), 3)) == "the cat dog"


# In company -------------------------------------------------------------------------------------------

PREFIXES = (None, "the", "a cat", "cats and")
WORDS = ("cat", "the", "a", "sat", "the cat", "dog", "cats", "and")

wishes = st.fixed_dictionaries(
    {
        "min_length": st.integers(0, 6),
        "no_repeat_ngram_size": st.sampled_from([0, 0, 1, 2, 3]),
        "repetition_penalty": st.sampled_from([1.0, 1.5]),
        "forbidden_words": st.lists(st.sampled_from(WORDS), max_size=3),
    }
)
everything = given(
    kind=st.sampled_from(KINDS),
    wishes=wishes,
    prefix=st.sampled_from(PREFIXES),
    terms=st.lists(st.sampled_from(WORDS), max_size=2),
    limit=st.integers(0, 30),
    seed=st.integers(0, 1000),
)


def made(kind, wishes, prefix, terms, limit):
    """The rules, unless they are an error."""
    try:
        rules = make_rules(Decoding(**wishes), tokenizer(kind), prefix=prefix, terms=terms)
        for rule in rules:
            rule.check(limit)
    except ValueError as error:
        assume("can't be written" not in str(error) and "may be written" not in str(error))
        raise
    return rules


def assert_kept(tokens, kind, wishes, prefix, terms, limit):
    """None of the rules is broken, as one can see without them."""
    text = tokenizer(kind).decode(tokens)
    assert wishes["min_length"] <= len(tokens) <= limit
    n = wishes["no_repeat_ngram_size"]
    rows = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)] if n else []
    assert len(set(rows)) == len(rows)
    assert text.startswith(prefix or "")
    assert not [word for word in wishes["forbidden_words"] if occurs(word, text)], text
    assert all(occurs(term, text) for term in terms), text


@everything
@settings(max_examples=120, deadline=None)
def test_no_output_breaks_a_rule(kind, wishes, prefix, terms, limit, seed):
    demands = kind, wishes, prefix, terms, limit
    tokens = write(made(*demands), favouring(tokenizer(kind), seed, " ".join(WORDS)), limit)
    if tokens is not None:  # a dead end, which the search reports
        assert_kept(tokens, *demands)


@given(
    kind=st.sampled_from(KINDS),
    words=st.lists(st.sampled_from(["cat", "a", "the", "dogs", "on", "s"]), max_size=3),
    terms=st.lists(st.sampled_from(["cats", "sat", "dog", "mat"]), min_size=1, max_size=2),
    limit=st.integers(0, 30),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_between_forbidden_words_and_terms_there_is_a_way(kind, words, terms, limit, seed):
    """A word that must still become another one never stands in the way of a term."""
    wishes = {"forbidden_words": words, "min_length": 0, "no_repeat_ngram_size": 0}
    demands = kind, wishes, None, terms, limit
    tokens = write(made(*demands), favouring(tokenizer(kind), seed, " ".join(WORDS)), limit)
    assert tokens is not None
    assert_kept(tokens, *demands)


@cache
def chain(kind, seed):
    return Chain(favouring(tokenizer(kind), seed, " ".join(WORDS)).exp().tolist())


@everything
@settings(max_examples=40, deadline=None)
def test_no_search_breaks_a_rule(kind, wishes, prefix, terms, limit, seed):
    demands = kind, wishes, prefix, terms, limit
    rules = made(*demands)
    for method in (Greedy(), Beam(3, n_best=2), Beam(4, groups=2), Sample(2)):
        with suppress(Impossible):
            (found,) = find(chain(kind, seed % 5), method, Job(limit=limit, rules=rules), never=(PAD, BOS, UNK, MASK))
            for hypothesis in found:
                assert_kept(hypothesis.tokens, *demands)
