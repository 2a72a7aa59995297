"""Trains the vocabulary of a unigram tokenizer (arXiv:1804.10959): the parts of words that make text most likely.

Each piece x has a probability p(x). A word can be cut into pieces in many ways; the probability of a way is the product
over its pieces. We begin with all frequent parts of words and repeat

    E      count(x) = expected number of x, over all ways to cut each word
    M      log p(x) = ψ(count(x)) − ψ(sum of counts)        ψ, the digamma function, lowers rare pieces most
    prune  remove the quarter with the smallest loss count(x) · (log p(x) − log p(x cut otherwise)) of log-likelihood

until the vocabulary is small enough. The library `tokenizers` has a trainer for this, but its result changes from one
run to the next, as it sums in the order of a randomly seeded hash table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.signedinteger]
Floats = NDArray[np.float64]
Truths = NDArray[np.bool_]

_LONGEST_PIECE = 16  # bytes
_LONGEST_WORD = 16  # characters; longer words are cut, for training
_MOST_LETTERS = 2_000_000  # limit on the bytes of all different words together; the rarest words are left out
_SEEDS_PER_PIECE, _FEWEST_SEEDS = 16, 50_000
_SHRINK, _ROUNDS = 0.75, 2
_EXPECTED, _LEAST = 0.5, 0.1  # expected count below which a piece is removed; smallest count of a byte
_BYTES = 256  # pieces 0 to 255 are the single bytes, which are never removed


def train_unigram(words: Mapping[bytes, int], size: int) -> dict[bytes, float]:
    """Words, the most frequent first, with their counts → at most `size` pieces with log p, the 256 bytes first."""
    lattice, pieces, counts = _seed(_short(words), max(_SEEDS_PER_PIECE * size, _FEWEST_SEEDS))
    inside = _inside(pieces)
    while True:
        for _ in range(_ROUNDS):
            scores = _log_probability(counts)
            counts = np.maximum(lattice.expected(scores), _LEAST)
        scores = _log_probability(counts)
        if len(pieces) <= size:
            break
        losses = counts * (scores - inside.best(scores))
        kept = _best(losses, max(size, _BYTES + int((len(pieces) - _BYTES) * _SHRINK)))
        kept[_BYTES:] &= counts[_BYTES:] >= _EXPECTED
        pieces, counts = _select(pieces, kept), counts[kept]
        lattice, inside = lattice.with_pieces(kept), inside.with_pieces(kept).with_words(kept)
    return dict(zip(pieces, scores.round(6).tolist(), strict=True))


@dataclass(frozen=True)
class Lattice:
    """All ways to cut all words. A node is a boundary before, between or behind letters; a piece is an edge.

    node      0   1   2   3  |  4   5   6
    letter      c   a   t    |    a   t          "at" is an edge from 1 to 3, and one from 4 to 6

    Edges are sorted by depth, the number of letters of the word before their end, so that a loop over depths works on
    all words at once.
    """

    nodes: int
    first: Ints  # the node before each word
    last: Ints  # the node behind it
    counts: Floats  # how often the word occurs
    start: Ints  # of each edge, a node
    end: Ints
    piece: Ints
    depth: Ints  # of each edge: letters of the word before its end

    @classmethod
    def of(cls, lengths: Ints, counts: Floats, start: Ints, end: Ints, piece: Ints) -> Lattice:
        behind = np.cumsum(lengths + 1)
        first = behind - lengths - 1
        depth = end - np.repeat(first, lengths + 1)[end]
        order = np.lexsort((end, depth))
        edges = (np.ascontiguousarray(edge[order], dtype=np.int32) for edge in (start, end, piece, depth))
        return cls(int(behind[-1]), first, behind - 1, counts, *edges)

    def with_pieces(self, kept: Truths) -> Lattice:
        """The lattice with only these pieces, renumbered."""
        here, number = kept[self.piece], np.cumsum(kept, dtype=np.int32) - 1
        start, end, depth = self.start[here], self.end[here], self.depth[here]
        return replace(self, start=start, end=end, depth=depth, piece=number[self.piece[here]])

    def with_words(self, kept: Truths) -> Lattice:
        """The lattice with only these words. The edges of the others stay, without effect."""
        return replace(self, last=self.last[kept], counts=self.counts[kept])

    def best(self, scores: Floats) -> Floats:
        """The score of the best way to cut each word; −∞ if there is none."""
        return self._forward(scores, np.maximum.reduceat)[self.last]

    def expected(self, scores: Floats) -> Floats:
        """The expected count of each piece, over all ways to cut all words.

        Backwards from the ends of the words, visits(end) is distributed over the edges to that node:
        along(edge) = visits(end) · exp(α(start) + log p(piece) − α(end)), with α from the forward pass.
        """
        alpha = self._forward(scores, _log_sum_exp)
        visits = np.zeros(len(alpha))
        visits[self.last] = self.counts
        along = np.empty(len(self.piece))
        for row in reversed([*self._rows()]):
            start, end = self.start[row], self.end[row]
            along[row] = visits[end] * np.exp(alpha[start] + scores[self.piece[row]] - alpha[end])
            np.add.at(visits, start, along[row])
        return _sums(self.piece, along, len(scores))

    def _forward(self, scores: Floats, join: Callable[[Floats, Ints], Floats]) -> Floats:
        """For each node the scores of all ways to it from the start of its word, reduced by `join`."""
        alpha = np.full(self.nodes, -np.inf)
        alpha[self.first] = 0
        for row in self._rows():
            end = self.end[row]
            groups = np.flatnonzero(np.diff(end, prepend=-1))  # edges to the same node are adjacent
            alpha[end[groups]] = join(alpha[self.start[row]] + scores[self.piece[row]], groups)
        return alpha

    def _rows(self) -> Iterator[slice]:
        """The edges of each depth."""
        most = int(self.depth[-1]) if len(self.depth) else 0
        bounds = np.searchsorted(self.depth, np.arange(1, most + 2))
        return (slice(int(a), int(b)) for a, b in pairwise(bounds) if a < b)


def _sums(index: Ints, values: Floats, size: int = 0) -> Floats:
    """The sum of the values at each index."""
    return np.bincount(index, values, minlength=size).astype(np.float64, copy=False)


def _log_sum_exp(x: Floats, groups: Ints) -> Floats:
    most = np.maximum.reduceat(x, groups)
    sizes = np.diff(groups, append=len(x))
    return most + np.log(np.add.reduceat(np.exp(x - np.repeat(most, sizes)), groups))


def _log_probability(counts: Floats) -> Floats:
    import torch  # here: listing tasks imports this module, and must not wait for torch

    logs: Floats = torch.digamma(torch.from_numpy(np.append(counts, counts.sum()))).numpy()
    return logs[:-1] - logs[-1]


def _best(values: Floats, number: int) -> Truths:
    """A mask of the pieces to keep: the bytes and the best other pieces; among equally good ones, the first."""
    kept = np.arange(len(values)) < _BYTES
    kept[_BYTES + np.argsort(-values[_BYTES:], kind="stable")[: number - _BYTES]] = True
    return kept


def _select(pieces: Sequence[bytes], kept: Truths) -> list[bytes]:
    return [piece for piece, keep in zip(pieces, kept, strict=True) if keep]


def _short(words: Mapping[bytes, int]) -> dict[bytes, int]:
    """The words, with long ones cut, up to the limit _MOST_LETTERS."""
    short: dict[bytes, int] = {}
    budget = _MOST_LETTERS
    for word, count in words.items():
        letters = word.decode()
        for start in range(0, len(letters), _LONGEST_WORD):
            part = letters[start : start + _LONGEST_WORD].encode()
            budget -= 0 if part in short else len(part)
            short[part] = short.get(part, 0) + count
        if budget <= 0:
            break
    return short


def _inside(pieces: Sequence[bytes]) -> Lattice:
    """A lattice whose words are the pieces, with all ways to cut each into at least two."""
    number = {piece: i for i, piece in enumerate(pieces)}
    lengths = np.array([len(piece) for piece in pieces])
    edges, first = [], 0
    for piece in pieces:
        size = len(piece)
        for start in range(size):
            for end in range(start + 1, size + (start > 0)):
                if (part := number.get(piece[start:end])) is not None:
                    edges.append((first + start, first + end, part))
        first += size + 1
    return Lattice.of(lengths, np.ones(len(pieces)), *np.array(edges, dtype=np.int64).reshape(-1, 3).T)


def _seed(words: Mapping[bytes, int], most: int) -> tuple[Lattice, list[bytes], Floats]:
    """The initial pieces: the bytes, and frequent parts of words that begin and end at character boundaries."""
    lengths, counts = np.array([len(word) for word in words]), np.array([*words.values()], dtype=np.float64)
    text = np.frombuffer(b"".join(word + b" " for word in words), dtype=np.uint8)
    parts_by_length = [*_repeated(text, lengths, np.repeat(counts, lengths + 1))]
    gains = np.concatenate([np.zeros(0)] + [length * part.counts for length, part in enumerate(parts_by_length[1:], 2)])
    chosen = np.zeros(len(gains), dtype=bool)
    chosen[np.argsort(-gains, kind="stable")[: most - _BYTES]] = True
    chosen &= gains > 0
    number = np.where(chosen, np.cumsum(chosen, dtype=np.int32) - 1 + _BYTES, -1).astype(np.int32)
    pieces, edges, seen = [bytes([byte]) for byte in range(_BYTES)], [], 0
    for length, part in enumerate(parts_by_length, 1):
        ids = np.arange(_BYTES, dtype=np.int32) if length == 1 else number[seen : seen + len(part.counts)]
        seen += 0 if length == 1 else len(part.counts)
        piece = ids[part.rank]
        start = part.start[piece >= 0]
        edges.append(np.stack([start, start + length, piece[piece >= 0]]))
        if length > 1:
            pieces += [text[i : i + length].tobytes() for i in part.example[ids >= 0]]
    weights = np.maximum(np.concatenate([parts_by_length[0].counts, gains[chosen]]), _LEAST)
    return Lattice.of(lengths, counts, *np.concatenate(edges, axis=1)), pieces, weights


@dataclass(frozen=True)
class _Parts:
    """All parts of words of one length that occur at least twice."""

    start: Ints  # the index of each occurrence in the text
    rank: Ints  # of the part that begins there, among all different parts, sorted
    counts: Floats  # of each different part; 0 if it does not consist of complete characters
    example: Ints  # the index of one occurrence of each


def _repeated(text: NDArray[np.uint8], lengths: Ints, weight: Floats) -> Iterator[_Parts]:
    """The bytes, then the repeated parts of 2, 3, 4, … letters: each extends a part that is one letter shorter."""
    behind = np.repeat(np.cumsum(lengths + 1) - 1, lengths + 1)  # the node behind the word of each node
    boundary = (text & 0xC0) != 0x80  # in UTF-8, where a character begins or a word ends
    start: Ints = np.flatnonzero(np.arange(len(text)) < behind).astype(np.int32)
    rank: Ints = text[start].astype(np.int32)
    yield _Parts(start, rank, _sums(rank, weight[start], _BYTES), np.zeros(_BYTES, dtype=np.int64))
    start, rank = start[boundary[start]], rank[boundary[start]]
    for length in range(2, _LONGEST_PIECE + 1):
        long = start + length <= behind[start]
        start, rank = start[long], rank[long]
        _, rank = np.unique(rank * np.int64(256) + text[start + length - 1], return_inverse=True)
        often = (_sums(rank, weight[start]) > 1)[rank]
        start, rank = start[often], np.unique(rank[often], return_inverse=True)[1].astype(np.int32)
        if not len(start):
            return
        counts = _sums(rank, weight[start])
        example = np.zeros(len(counts), dtype=np.int64)
        example[rank] = start
        yield _Parts(start, rank, np.where(boundary[example + length], counts, 0.0), example)
