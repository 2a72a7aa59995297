"""Forbidden words: they never occur in the output, however the tokenizer would split them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sixfold.core.ids import EOS
from sixfold.decoding.rules.phrase_automaton import BROKEN, Ints, Match, Phrases, Spellings, Walk, spellings, stripped
from sixfold.decoding.rules.rule import Rule
from sixfold.text.tokenizer import Tokenizer

FAR = 8  # tokens: larger budgets count as this one; a text that needs this many before it may end counts as endless
_MOST_MASKS = 1000  # most cached masks, each as large as the vocabulary
_DEAD, _UNKNOWN = 0, -1

TextState = tuple[bytes, int]  # the first bytes of an incomplete character, and the number of a match


class ForbiddenWords(Rule):
    """None of these words or phrases occurs in the output as a full word (see `phrase_automaton`).

    After "cat" at the end of the text, only tokens that make it another word ("cats") are allowed; EOS is forbidden,
    too. If no token can do that, "cat" itself is forbidden.
    """

    def __init__(self, words: Sequence[str], tokenizer: Tokenizer):
        self.words = stripped(words, "forbidden words")
        self._phrases = Phrases(self.words)
        self._texts = _Texts(self._phrases, spellings(tokenizer))
        self._walk = Walk(self._texts.start, self._texts.after)
        self._masks: dict[tuple[TextState, int, torch.device], Tensor] = {}

    def describe(self) -> str:
        more = f" and {len(self.words) - 3} more" if len(self.words) > 3 else ""
        return f"never say {', '.join(map(repr, self.words[:3]))}{more}"

    def found_in(self, text: str) -> bool:
        """Whether one of them occurs in a complete text."""
        return bool(self._phrases.find(text))

    def breaks(self, written: Sequence[int], *, over: bool) -> bool:
        state = self._walk(written)
        return not self._texts.may_end(state) if over else self._texts.way_out(state) == FAR

    def apply(self, log_p: Tensor, written: Sequence[int], budget: int) -> None:
        # At budget 0 only EOS can be chosen. The mask for budget 1 is used: it keeps the scores of other words.
        log_p.masked_fill_(self._mask(self._walk(written), min(max(budget, 1), FAR), log_p.device), -torch.inf)

    def _mask(self, state: TextState, budget: int, device: torch.device) -> Tensor:
        """(V,): which words are forbidden."""
        mask = self._masks.get((state, budget, device))
        if mask is None:
            if len(self._masks) >= _MOST_MASKS:
                self._masks.clear()
            mask = torch.from_numpy(self._texts.ways_out(state) >= budget).to(device)
            self._masks[state, budget, device] = mask
        return mask


@lru_cache(maxsize=8)
def forbidden_words(words: tuple[str, ...], tokenizer: Tokenizer) -> ForbiddenWords:
    """The same object for the same words: its caches are expensive to fill and can serve any number of outputs."""
    return ForbiddenWords(words, tokenizer)


class _Texts:
    """All texts without a phrase, as an automaton over token ids whose states are computed when they are needed.

    A state is a numbered match and the bytes of an incomplete character. Match 0 stands for all texts with a phrase; it
    is never left.
    """

    def __init__(self, phrases: Phrases, vocabulary: Spellings):
        self._phrases, self._vocabulary = phrases, vocabulary
        self._matches: list[Match] = [Match()]
        self._numbers: dict[Match, int] = {}
        self._table: Ints = np.zeros((1, len(phrases)), dtype=np.int32)  # match, code → match
        self._way_out: dict[TextState, int] = {}
        codes = np.array([phrases.code(character) for character in vocabulary.characters], dtype=np.int32)
        self._columns = [codes[column] for column in vocabulary.columns]
        self.start: TextState = (b"", self._number(Match()))

    def after(self, state: TextState, id_: int) -> TextState:
        """The state after this token."""
        text, pending = self._vocabulary.read(state[0], id_)
        match = state[1]
        for character in text:
            match = self._read(match, self._phrases.code(character))
        return pending, match

    def may_end(self, state: TextState) -> bool:
        """Whether the text is without a phrase if it ends here."""
        match = self._settled(state)
        return match != _DEAD and not self._phrases.at_end(self._matches[match])

    def ways_out(self, state: TextState) -> NDArray[np.int8]:
        """For each id, the tokens needed after it before the text may end; FAR if it can't. For EOS: −1 or FAR."""
        ways = np.full(len(self._vocabulary), FAR, dtype=np.int8)
        matches, indices = np.unique(self._after_complete(state), return_inverse=True)
        found = np.array([self.way_out((b"", match)) for match in matches.tolist()], dtype=np.int8)
        ways[self._vocabulary.complete] = found[indices]
        for id_ in self._vocabulary.other:
            ways[id_] = self.way_out(self.after(state, id_))
        ways[EOS] = -1 if self.may_end(state) else FAR
        return ways

    def way_out(self, state: TextState) -> int:
        """Fewest tokens after which the text may end, 0 in most states.

        FAR if it can't end, for example if every possible next token begins with a space.

        An incomplete character is completed byte by byte; then complete characters follow.
        """
        if state not in self._way_out:
            pending, match = state
            if self.may_end(state):
                tokens = 0
            elif pending:
                missing, codes = self._phrases.completed(pending)
                ways = (self.way_out((b"", self._read(match, code))) for code in codes)
                tokens = min(missing + min(ways, default=FAR), FAR)
            else:
                tokens = self._search_way_out(match)
            self._way_out[state] = tokens
        return self._way_out[state]

    def _search_way_out(self, match: int) -> int:
        tokens, edge = 0, {match}
        seen = edge | {_DEAD}
        while edge and tokens < FAR and not any(self.may_end((b"", match)) for match in edge):
            there = [np.unique(self._after_complete((b"", match))).tolist() for match in edge - {_DEAD}]
            tokens, edge = tokens + 1, set().union(*there) - seen
            seen |= edge
        return tokens if edge else FAR

    def _after_complete(self, state: TextState) -> Ints:
        """The match after each id that consists of complete characters."""
        matches = np.full(len(self._vocabulary.complete), self._settled(state), dtype=np.int32)
        for codes in self._columns:
            here = matches[: len(codes)]
            there = self._table[here, codes]
            if (new := there == _UNKNOWN).any():
                for match, code in np.unique(np.stack([here[new], codes[new]]), axis=1).T.tolist():
                    self._read(match, code)
                there = self._table[here, codes]
            matches[: len(codes)] = there
        return matches

    def _settled(self, state: TextState) -> int:
        """The match if the incomplete character stays incomplete."""
        pending, match = state
        return self._read(match, self._phrases.code(BROKEN)) if pending else match

    def _read(self, match: int, code: int) -> int:
        there = int(self._table[match, code])
        if there == _UNKNOWN:
            after, found = self._phrases.read(self._matches[match], code)
            there = _DEAD if found else self._number(after)
            self._table[match, code] = there
        return there

    def _number(self, match: Match) -> int:
        number = self._numbers.setdefault(match, len(self._matches))
        if number == len(self._matches):
            self._matches.append(match)
            if number == len(self._table):
                rows = np.full_like(self._table, _UNKNOWN)
                self._table = np.concatenate([self._table, rows])
        return number
