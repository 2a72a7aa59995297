"""Makes the rules of one output from a decoding configuration."""

from __future__ import annotations

from collections.abc import Sequence

from sixfold.config.schema import Decoding
from sixfold.core.ids import UNK
from sixfold.decoding.rules.forbidden_words import forbidden_words
from sixfold.decoding.rules.required_terms import MustOccur
from sixfold.decoding.rules.rule import (
    CoveragePenalty,
    ForcedPrefix,
    MinimumLength,
    NoRepeatedNgram,
    RepetitionPenalty,
    Rule,
)
from sixfold.text.tokenizer import Tokenizer


def make_rules(
    decoding: Decoding, tokenizer: Tokenizer, *, prefix: str | None = None, terms: Sequence[str] = ()
) -> tuple[Rule, ...]:
    """The rules for one output: those of the configuration, and its own prefix and terms.

    Rules that demand words must come after rules that forbid some. Their expensive tables are shared.
    """
    begin = _prefix(prefix, tokenizer)
    rules: list[Rule] = []
    if decoding.repetition_penalty != 1:
        rules.append(RepetitionPenalty(decoding.repetition_penalty))
    if decoding.min_length:
        rules.append(MinimumLength(decoding.min_length))
    if decoding.no_repeat_ngram_size:
        rules.append(NoRepeatedNgram(decoding.no_repeat_ngram_size))
    forbidden = forbidden_words(tuple(decoding.forbidden_words), tokenizer) if decoding.forbidden_words else None
    if forbidden is not None:
        rules.append(forbidden)
    if begin:
        _demand(f"the prefix {prefix!r}", [begin], rules, over=False)
        rules.append(ForcedPrefix(begin))
    if terms:
        must = MustOccur(terms, tokenizer, begin, forbidden)
        for term, ways in must.ways().items():
            _demand(f"the term {term!r}", ways, rules, over=True)
        rules.append(must)
    if decoding.coverage_penalty and decoding.beam_size > 1:  # it ranks the outputs of a beam
        rules.append(CoveragePenalty(decoding.coverage_penalty))
    return tuple(rules)


def _prefix(prefix: str | None, tokenizer: Tokenizer) -> tuple[int, ...]:
    tokens = tuple(tokenizer.encode(prefix)) if prefix else ()
    if UNK in tokens:
        raise ValueError(f"the prefix {prefix!r} has words that are not in the vocabulary, so no output can contain it")
    return tokens


def _demand(what: str, ways: Sequence[Sequence[int]], rules: Sequence[Rule], *, over: bool) -> None:
    """Refuse a demand if one of the rules forbids every tokenization of it."""
    for rule in rules:
        if all(rule.breaks(way, over=over) for way in ways):
            raise ValueError(f"{what} can't be written: it is against another rule ({rule.describe()})")
