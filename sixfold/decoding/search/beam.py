"""Beam search: the w likeliest beginnings are extended side by side.

The candidates are the 2w best of all words after all hypotheses. An EOS among the first w ends its hypothesis, and the
first w other candidates are kept:

    here w = 2      the                the cat  −1.3    kept
                    a                  a cat    −1.6    kept
                                       the EOS  −1.9    cut: not among the first w

Log-probabilities only fall, so a sentence is done when no open hypothesis, at any length up to the limit, can reach a
better score than those found. With one hypothesis and no length penalty this is greedy search.

Diverse beam search (arXiv 1610.02424): groups of hypotheses choose one after another, and a word costs λ for each time
that an earlier group has chosen it in this step.

Constrained beam search (arXiv 1804.06609): where a rule demands words, the words that it wants next are candidates as
well, and the beam is divided among the degrees of progress. So hypotheses that contain a demanded word, which lowered
their rank, are not crowded out by those that do not.

Letters: S sentences, w hypotheses of each, G groups, k hypotheses of each, V words, T candidates after one hypothesis.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest

import numpy as np

from sixfold.core.ids import EOS
from sixfold.decoding.job import Candidates, Hypothesis, Impossible, Job, Sentence, empty
from sixfold.decoding.search.length_penalty import PLAIN, LengthPenalty
from sixfold.decoding.search.topk import top
from sixfold.decoding.trace import TracedCandidate

# A word after a hypothesis: the number that candidates are compared by; the rank of the hypothesis with this word; the
# index of the hypothesis; the word; the model's own log-probability of it. A plain tuple, because that is fastest.
Candidate = tuple[float, float, int, int, float]


@dataclass
class _Group:
    """Hypotheses that are compared with each other."""

    indices: range
    found: dict[Hashable, Hypothesis] = field(default_factory=dict)  # the best of each output, with its final rank
    done: bool = False


@dataclass(eq=False)
class _Beams(Sentence):
    groups: list[_Group] = field(default_factory=list)
    demanding: bool = False  # a rule demands words


@dataclass(frozen=True)
class Beam:
    """A method of search: `size` hypotheses in `groups`, which find `n_best` outputs that all differ in `same`."""

    size: int = 4
    n_best: int = 1
    length: LengthPenalty = PLAIN
    groups: int = 1
    diversity: float = 0.0  # λ
    same: Callable[[tuple[int, ...]], Hashable] = tuple

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.size:
            raise ValueError(f"a beam of {self.size} finds 1 to {self.size} outputs, got n_best {self.n_best}")
        if self.groups < 1 or self.size % self.groups:
            raise ValueError(f"{self.size} hypotheses can't be divided into {self.groups} groups")

    @property
    def width(self) -> int:
        return self.size

    def begin(self, job: Job) -> Sentence:
        """All hypotheses are equal before the first word, so each group begins with one."""
        each = self.size // self.groups
        groups = [_Group(range(start, start + each)) for start in range(0, self.size, each)]
        opens = [Hypothesis(parent=index) if index % each == 0 else empty(index) for index in range(self.size)]
        return _Beams(job, opens, groups=groups, demanding=any(rule.demands for rule in job.rules))

    def choose(self, sentences: Sequence[Sentence], words: Candidates) -> None:
        best = _Best(words, sentences, self.groups)
        for number, sentence in enumerate(sentences):
            assert isinstance(sentence, _Beams)
            if not sentence.done:
                self._choose(sentence, best, number)

    def _choose(self, sentence: _Beams, best: _Best, number: int) -> None:
        opens, taken = list(sentence.open), Counter[int]()
        for index, group in enumerate(sentence.groups):
            if not group.done:
                candidates = best.candidates(number, index)
                if sentence.demanding:
                    candidates = _joined(candidates, best.demanded(number, group.indices))
                if taken:
                    candidates = _penalised(candidates, taken, self.diversity)
                opens[group.indices.start : group.indices.stop] = chosen = self._extend(sentence, group, candidates)
                if len(sentence.groups) > 1:
                    taken.update(each.tokens[-1] for each in chosen if each.alive)
        sentence.open = opens
        for group in sentence.groups:
            group.done = group.done or self._is_done(sentence, group)
        if all(group.done for group in sentence.groups):
            self._finish(sentence)

    def _extend(self, sentence: _Beams, group: _Group, candidates: Iterable[Candidate]) -> list[Hypothesis]:
        """Store hypotheses that have ended. → those of the next step, padded to the size of the group"""
        if sentence.trace is not None:
            candidates = list(candidates)
        kept, ended = _taken(sentence, len(group.indices), candidates)
        for _, rank, index, _, log_p in ended:
            self._store(sentence, group, index, rank, log_p)
        if sentence.trace is not None:
            sentence.trace.steps[-1].candidates += _traced(sentence, group, candidates, kept, ended)
        opens = [sentence.open[index].extended(word, log_p, rank, index) for _, rank, index, word, log_p in kept]
        return opens + [empty(index) for index in group.indices[len(opens) :]]

    def _store(self, sentence: _Beams, group: _Group, index: int, rank: float, log_p: float) -> None:
        """Store the hypothesis at this index, which has ended."""
        each = sentence.open[index]
        log_probs = (*each.log_probs, log_p)
        rank = self.length.score(rank, len(log_probs))
        rank += sum(rule.final(each.tokens, each.coverage) for rule in sentence.rules)
        score = self.length.score(sum(log_probs), len(log_probs))
        same = self.same(each.tokens)
        if same not in group.found or group.found[same].rank < rank:
            group.found[same] = Hypothesis(each.tokens, log_probs, score, sentence.ended(index), rank)

    def _is_done(self, sentence: _Beams, group: _Group) -> bool:
        opens = [each for each in sentence.open[group.indices.start : group.indices.stop] if each.rank > -math.inf]
        if not opens or len(group.found) < self.n_best:  # each group finds n_best: others may find the same outputs
            return not opens
        to_beat = sorted((found.rank for found in group.found.values()), reverse=True)[self.n_best - 1]
        longest = sentence.job.limit + 1
        return all(self.length.best(each.rank, len(each.tokens) + 1, longest) <= to_beat for each in opens)

    def _finish(self, sentence: _Beams) -> None:
        """Take the best of each group, then the second best of each, and so on up to n_best; then sort by rank."""
        ordered = [sorted(group.found.items(), key=lambda item: -item[1].rank) for group in sentence.groups]
        chosen: dict[Hashable, Hypothesis] = {}
        for index in range(max(map(len, ordered))):
            for same, found in (line[index] for line in ordered if index < len(line)):
                if len(chosen) < self.n_best:
                    chosen.setdefault(same, found)
        if not chosen:
            sentence.fail(Impossible(sentence.job))
            return
        sentence.found, sentence.done = sorted(chosen.values(), key=lambda found: -found.rank), True


class _Best:
    """The best words after the hypotheses, and those that rules demand."""

    def __init__(self, words: Candidates, sentences: Sequence[Sentence], groups: int):
        self.words, self.sentences = words, sentences
        number, width, vocabulary = words.chosen.shape
        each = width // groups
        penalised = width - each  # words that earlier groups may have chosen, which the diversity penalty moves back
        best = top(words.chosen, min(2 * each + penalised, vocabulary))  # (S, w, T): the best of all are among them
        log_p = words.scores.gather(-1, best.indices) - words.log_z[..., None]
        ranks = np.array([[hypothesis.rank for hypothesis in sentence.open] for sentence in sentences])
        rank = ranks[..., None] + (best.values - words.shift[..., None]).numpy(force=True)
        looked_at = rank.shape[-1]
        lines = np.arange(number * groups)[:, None]
        rank = rank.reshape(len(lines), -1)  # (S·G, k·T)
        order = np.argsort(-rank, axis=1, kind="stable")[:, : 2 * each + penalised * each]
        index = order // looked_at + lines % groups * each
        word, own = (tensor.numpy(force=True).reshape(rank.shape) for tensor in (best.indices, log_p))
        self._listed = [array.tolist() for array in (rank[lines, order], index, word[lines, order], own[lines, order])]
        self._groups = groups

    def candidates(self, number: int, group: int) -> Iterable[Candidate]:
        """At least twice as many as the group has hypotheses, the best first; those of rank −∞ are forbidden."""
        rank, index, word, log_p = (listed[number * self._groups + group] for listed in self._listed)
        return zip(rank, rank, index, word, log_p, strict=True)

    def demanded(self, number: int, indices: range) -> Iterator[Candidate]:
        """The next words that rules demand, and EOS."""
        sentence, words = self.sentences[number], self.words
        for index in indices:
            each = sentence.open[index]
            if each.alive:
                wanted = {word for rule in sentence.rules for word in rule.wants(each.tokens)} | {EOS}
                for word in sorted(wanted):
                    rank = each.rank + float(words.chosen[number, index, word] - words.shift[number, index])
                    log_p = float(words.scores[number, index, word] - words.log_z[number, index])
                    yield rank, rank, index, word, log_p


def _taken(sentence: _Beams, size: int, candidates: Iterable[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    """The candidates that are kept, at most `size`, and those that end a hypothesis."""
    others, ended = list[list[Candidate]](), list[Candidate]()
    for bank in _banks(sentence, candidates):
        others.append([])
        for number, candidate in enumerate(bank, 1):
            _, rank, _, word, _ = candidate
            if not rank > -math.inf:  # −∞, or NaN, which compares false
                break
            if word != EOS:
                others[-1].append(candidate)
            elif number <= size:
                ended.append(candidate)
            if number >= size and len(others[-1]) == size:
                break
    return list(islice(_fairly(others, size), size)), ended


def _traced(
    sentence: _Beams,
    group: _Group,
    candidates: Iterable[Candidate],
    kept: Sequence[Candidate],
    ended: Sequence[Candidate],
) -> Iterator[TracedCandidate]:
    """For a trace: the candidates of a group, each with its fate: kept, ended, stopped or cut."""
    index_of = {candidate[2:4]: index for index, candidate in zip(group.indices, kept, strict=False)}
    ends = {candidate[2:4] for candidate in ended}
    for _, rank, parent, word, log_p in candidates:
        if not rank > -math.inf:
            continue
        if (parent, word) in index_of:
            yield TracedCandidate(parent, word, log_p, rank, "kept", index_of[parent, word])
        elif (parent, word) in ends:
            yield TracedCandidate(parent, word, log_p, rank, "ended" if sentence.ended(parent) else "stopped")
        else:
            yield TracedCandidate(parent, word, log_p, rank, "cut")


def _penalised(candidates: Iterable[Candidate], taken: Counter[int], cost: float) -> list[Candidate]:
    """The candidates in their new order when each word costs `cost` for each time that it was taken."""
    later = ((by - cost * taken[word], rank, index, word, log_p) for by, rank, index, word, log_p in candidates)
    return sorted((each for each in later if each[1] > -math.inf), key=_best_first)


def _joined(candidates: Iterable[Candidate], others: Iterable[Candidate]) -> list[Candidate]:
    """Both without duplicates and without those of rank −∞."""
    each = {candidate[2:4]: candidate for candidate in chain(others, candidates) if candidate[1] > -math.inf}
    return sorted(each.values(), key=_best_first)


def _best_first(candidate: Candidate) -> float:
    return -candidate[0]


def _fairly(banks: Sequence[Sequence[Candidate]], indices: int) -> Iterable[Candidate]:
    """The banks in turn; if there are more banks than hypotheses, first the best candidate of all.

    Otherwise, hypotheses with many demanded words would take all places. The model's best hypothesis, which may write
    these words later, where they fit, would be lost.
    """
    if len(banks) <= indices:
        return _in_turn(banks)
    best = min((bank[0] for bank in banks if bank), key=_best_first, default=None)
    others = [[candidate for candidate in bank if candidate is not best] for bank in banks]
    return _in_turn(others) if best is None else chain([best], _in_turn(others))


def _in_turn(banks: Sequence[Sequence[Candidate]]) -> Iterable[Candidate]:
    """The first of each bank, then the second of each, and so on."""
    if len(banks) == 1:
        return banks[0]
    return (candidate for turn in zip_longest(*banks) for candidate in turn if candidate is not None)


def _banks(sentence: _Beams, candidates: Iterable[Candidate]) -> Sequence[Iterable[Candidate]]:
    """The candidates by their number of demanded tokens, the most first."""
    if not sentence.demanding:
        return [candidates]
    banks: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        _, _, index, word, _ = candidate
        written = sentence.open[index].tokens
        written = written if word == EOS else (*written, word)
        banks.setdefault(sum(rule.progress(written) for rule in sentence.rules), []).append(candidate)
    return [banks[progress] for progress in sorted(banks, reverse=True)]
