"""Terms that must occur in the output, at positions that the model chooses.

A term counts as present if the text contains it, however it was tokenized. To write a term, the rule uses its tokens
with a space before it, or without one where that also makes a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from sixfold.core.ids import EOS, UNK
from sixfold.decoding.rules.forbidden_words import FAR, ForbiddenWords
from sixfold.decoding.rules.phrase_automaton import BROKEN, Match, Phrases, Walk, is_letter, spellings, stripped
from sixfold.decoding.rules.rule import Rule
from sixfold.text.tokenizer import Tokenizer

Way = tuple[int, ...]  # the tokens of a term, in one tokenization


class _State(NamedTuple):
    """The state of an unfinished text."""

    pending: bytes = b""  # the first bytes of an incomplete character
    match: Match = Match()
    space: bool = True  # whether the text is empty or ends with a space
    met: frozenset[int] = frozenset()  # terms that occur, for every continuation of the text


class _Option(NamedTuple):
    """Tokens that complete a missing term."""

    term: int
    way: Way


class MustOccur(Rule):
    """All terms occur in the output as full words (see `phrase_automaton`), after a forced prefix if there is one.

    EOS is forbidden until then. Where the model would end, or where the remaining budget just suffices, the missing
    terms are written one after the other, the likeliest way first. The rule remembers where the model would have
    ended, so each search has a `fresh` copy.

    With forbidden words, it also ensures that the text has not begun one of them when a term has to follow.
    """

    demands = True

    def __init__(
        self,
        terms: Sequence[str],
        tokenizer: Tokenizer,
        after: Sequence[int] = (),
        forbidden: ForbiddenWords | None = None,
    ):
        self._terms = _terms(stripped(terms, "terms"), tokenizer)
        self._walk = Walk(_State(), self._terms.after)
        self._prefix, self._forbidden = tuple(after), forbidden
        self._would_end: set[tuple[int, ...]] = set()

    def fresh(self) -> MustOccur:
        made = copy(self)
        made._would_end = set()
        return made

    def describe(self) -> str:
        return f"must say {', '.join(map(repr, self._terms.ways))}"

    def check(self, limit: int) -> None:
        need = len(self._prefix) + self._terms.need(self._walk(self._prefix))
        if need > limit:
            prefix = "the prefix and " if self._prefix else ""
            terms = ", ".join(map(repr, self._terms.ways))
            raise ValueError(f"{prefix}the terms {terms} need {need} tokens, but at most {limit} may be written")

    def ways(self) -> Mapping[str, Sequence[Way]]:
        """The tokens of each term, with and without a space before it."""
        return self._terms.ways

    def apply(self, log_p: Tensor, written: Sequence[int], budget: int) -> None:
        state = self._walk(written)
        if len(written) < len(self._prefix) or self._terms.all_in(state.met):
            return
        written, complete = tuple(written), self._terms.all_in(self._terms.met(state))
        would_end = written[:-1] in self._would_end or (not complete and bool(log_p[EOS] >= log_p.max()))
        if would_end:
            self._would_end.add(written)
        if not complete:
            log_p[EOS] = -torch.inf
        spare = budget - self._terms.most(state)
        if 0 < spare < FAR and self._forbidden is not None:
            self._forbidden.apply(log_p, written, spare)
        if spare <= 0 or would_end:
            self._force(log_p, state, budget, must=spare <= 0)

    def progress(self, written: Sequence[int]) -> int:
        return self._terms.progress(self._walk(written))

    def wants(self, written: Sequence[int]) -> Sequence[int]:
        if len(written) < len(self._prefix):
            return ()
        return tuple(dict.fromkeys(option.way[0] for option in self._terms.options(self._walk(written))))

    def _force(self, log_p: Tensor, state: _State, budget: int, must: bool) -> None:
        """Allow only words that continue a missing term, unless all of these are forbidden and the term can wait."""
        allowed = torch.zeros_like(log_p, dtype=torch.bool)
        allowed[self._terms.next_words(state, budget)] = True
        if must or (log_p[allowed] > -torch.inf).any():
            log_p.masked_fill_(~allowed, -torch.inf)


@lru_cache(maxsize=1000)
def _terms(terms: tuple[str, ...], tokenizer: Tokenizer) -> _Terms:
    return _Terms(terms, tokenizer)


class _Terms:
    """Which terms a text contains, and how to write the missing ones.

    The cost of a term is the number of tokens of its safe way, which works after any text: it begins with a space or
    with a non-letter.
    """

    def __init__(self, terms: Sequence[str], tokenizer: Tokenizer):
        self._vocabulary = spellings(tokenizer)
        texts = _needed([_known(term, tokenizer) for term in terms])
        self._phrases = Phrases(texts)
        self._everything = frozenset(range(len(texts)))
        self.ways = {text: _ways(text, tokenizer) for text in texts}
        self._ways = [*self.ways.values()]
        self._costs = [len(ways[0]) if is_letter(text[0]) else min(map(len, ways)) for text, ways in self.ways.items()]
        self._options: dict[_State, tuple[_Option, ...]] = {}
        self._needs: dict[_State, int] = {}

    def after(self, state: _State, id_: int) -> _State:
        """The state after this token."""
        text, pending = self._vocabulary.read(state.pending, id_)
        match, met = state.match, state.met
        for character in text:
            match, found = self._phrases.read(match, self._phrases.code(character))
            met = met.union(found) if found else met
        return _State(pending, match, text[-1].isspace() if text else state.space, met)

    def met(self, state: _State) -> frozenset[int]:
        """The terms that occur if the text ends here."""
        match, met = state.match, state.met
        if state.pending:
            match, found = self._phrases.read(match, self._phrases.code(BROKEN))
            met = met.union(found)
        return met.union(self._phrases.at_end(match))

    def all_in(self, met: frozenset[int]) -> bool:
        return met == self._everything

    def most(self, state: _State) -> int:
        """A number of tokens that always suffices: every term that is not certain to occur, written in its safe way."""
        return self._sum(self._everything - state.met)

    def need(self, state: _State) -> int:
        """Tokens needed to write all missing terms; at most `most`."""
        if state not in self._needs:
            ways = [len(option.way) + self._greedy(self._go(state, option.way)) for option in self.options(state)]
            self._needs[state] = min(ways, default=0)
        return self._needs[state]

    def options(self, state: _State) -> tuple[_Option, ...]:
        """The ways, or the rest of them, to complete each missing term. Empty if no term is missing."""
        if state not in self._options:
            missing = sorted(self._everything - self.met(state))
            rests = ((term, way[i:]) for term in missing for way in self._ways[term] for i in range(len(way)))
            self._options[state] = tuple(
                _Option(term, way) for term, way in dict.fromkeys(rests) if term in self.met(self._go(state, way))
            )
        return self._options[state]

    def next_words(self, state: _State, budget: int) -> list[int]:
        """Words that bring the missing terms nearer; if none is missing, words that spoil none.

        A space is allowed before a term even where it is not needed.
        """
        if self.all_in(self.met(state)):
            return [EOS, *self._vocabulary.no_letter_first]  # none of these makes another word of the last term
        options = self.options(state)
        needs = {word: self.need(self.after(state, word)) for word in dict.fromkeys(o.way[0] for o in options)}
        nearer = {word for word, need in needs.items() if need < self.need(state)}
        if not state.space and all(option.way in self._ways[option.term] for option in options):  # no term has begun
            nearer.update(self._ways[option.term][0][0] for option in options)
        return [word for word in nearer if needs[word] < budget]

    def progress(self, state: _State) -> int:
        """The cost of the terms that occur, plus the largest number of tokens written of an unfinished term."""
        begun = (self._costs[option.term] - len(option.way) for option in self.options(state))
        return self._sum(self.met(state)) + max([0, *begun])

    def _greedy(self, state: _State) -> int:
        """Tokens needed if the option that saves most is taken each time. Spoiling a term costs that term's tokens.

        A term's safe way saves nothing and spoils nothing, and the best option is at least as good. So the result is
        at most the sum of the costs of the missing terms.
        """
        tokens = 0
        while options := self.options(state):
            here = self.met(state)
            ends = {option: self._go(state, option.way) for option in options}
            best = max(
                options,
                key=lambda o: self._costs[o.term] - len(o.way) - self._sum(here - self.met(ends[o])),
            )
            tokens, state = tokens + len(best.way), ends[best]
        return tokens

    def _go(self, state: _State, way: Way) -> _State:
        return reduce(self.after, way, state)

    def _sum(self, terms: frozenset[int]) -> int:
        return sum(self._costs[term] for term in terms)


def _known(term: str, tokenizer: Tokenizer) -> str:
    """The term as the tokenizer writes it."""
    ids = tokenizer.encode(term)
    if UNK in ids:
        raise ValueError(f"the term {term!r} has words that are not in the vocabulary, so no output can contain it")
    return tokenizer.decode(ids)


def _needed(texts: Sequence[str]) -> list[str]:
    """Without the terms that are contained in other terms, such as "York" in "New York"."""
    texts = [*dict.fromkeys(texts)]
    phrases = Phrases(texts)
    contained = {number for index, text in enumerate(texts) for number in phrases.find(text) if number != index}
    return [text for number, text in enumerate(texts) if number not in contained]


def _ways(text: str, tokenizer: Tokenizer) -> tuple[Way, ...]:
    """The term's tokens with a space before it, and without. Both are equal if the tokenizer splits at spaces."""
    return tuple(dict.fromkeys(tuple(tokenizer.encode(variant)) for variant in (" " + text, text)))
