"""The likelihood of given texts under a model: teacher-forced log-probabilities.

    log p(target | source) = Σ_t log p(y_t | y_1 … y_t−1, source), where the last y is EOS

A decoder alone has no source. There is no smoothing, no dropout and no auxiliary loss, and the numbers do not depend on
which texts share a batch.

Letters: B rows, L tokens of a target with EOS, D model width, N tokens of all targets, V words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from sixfold.core.ids import BOS, EOS, UNK
from sixfold.core.loss import CHUNK, perplexity_of
from sixfold.decoding.session import check_sizes
from sixfold.decoding.step import batches_by_length, padded
from sixfold.models.model import Model, evaluating
from sixfold.text.tokenizer import Tokenizers

SourceAndTarget = tuple[str | None, str]  # source and target; None for a decoder alone
Ids = Sequence[int]

_WINDOW, _WINDOW_CHARACTERS = 4096, 1 << 20  # most pairs, and characters, that are sorted by length together


class Likelihood(NamedTuple):
    """The likelihood of one target."""

    log_prob: float  # of its tokens and EOS; the natural logarithm
    tokens: int  # with EOS
    bytes: int  # of the text in UTF-8, without the line end
    note: str = ""  # a remark for the user: unknown tokens

    @property
    def perplexity(self) -> float:
        """Per token."""
        return perplexity_of(-self.log_prob / self.tokens)

    def json(self) -> dict[str, Any]:
        note = {"note": self.note} if self.note else {}
        return {
            "log_prob": self.log_prob,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "perplexity": self.perplexity,
            **note,
        }


@dataclass(frozen=True)
class Perplexity:
    """The perplexity of many targets together."""

    texts: int
    log_prob: float
    tokens: int
    bytes: int
    unknown: int  # texts with tokens that are not in the vocabulary

    @property
    def per_token(self) -> float:
        """exp(−log p / tokens). Comparable between models with the same vocabulary only."""
        return perplexity_of(-self.log_prob / self.tokens)

    @property
    def bits_per_byte(self) -> float | None:
        """−log₂ p / bytes. Comparable between models with any vocabulary; None if all texts are empty."""
        return -self.log_prob / math.log(2) / self.bytes if self.bytes else None

    def json(self) -> dict[str, Any]:
        return {
            "texts": self.texts,
            "log_prob": self.log_prob,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "perplexity": self.per_token,
            "bits_per_byte": self.bits_per_byte,
            "texts_with_unknown_tokens": self.unknown,
        }


def perplexity(likelihoods: Iterable[Likelihood]) -> Perplexity:
    """The sums over all texts, in one pass: the iterable may be a stream."""
    texts, log_prob, tokens, size, unknown = 0, 0.0, 0, 0, 0
    for each in likelihoods:
        texts, log_prob, tokens, size = texts + 1, log_prob + each.log_prob, tokens + each.tokens, size + each.bytes
        unknown += bool(each.note)
    if not texts:
        raise ValueError("there is nothing to score: no texts")
    return Perplexity(texts, log_prob, tokens, size, unknown)


def likelihood(
    model: Model, tokenizers: Tokenizers, pairs: Iterable[SourceAndTarget], batch_tokens: int = 4096
) -> Iterator[Likelihood]:
    """The likelihood of each target given its source, in order; pairs are read as they are needed.

    A batch has at most `batch_tokens` tokens on either side, with padding. A pair that is longer, or
    that the model can't read, is an error that names its line.
    """
    if not model.writes_text:
        raise ValueError(f"the likelihood of a text needs a model that writes text, and this one is {model.kind}")
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens must be positive, got {batch_tokens}")
    sides = {"source": ("encoder", tokenizers.source)} if model.reads_source else {}
    for side, (stack, tokenizer) in {**sides, "target": ("decoder", tokenizers.target)}.items():
        check_sizes(model, tokenizer, side, stack)
    return _stream(model, tokenizers, pairs, batch_tokens)


class _Row(NamedTuple):
    """One pair in ids, without BOS and EOS."""

    source: Ids | None
    target: Ids

    @property
    def length(self) -> int:
        """Tokens of the longer side, with BOS or EOS."""
        return 1 + max(len(self.target), len(self.source or ()))


def _stream(
    model: Model, tokenizers: Tokenizers, pairs: Iterable[SourceAndTarget], batch_tokens: int
) -> Iterator[Likelihood]:
    first = 1
    for window in _windows(pairs):
        rows = _encode(model, tokenizers, window, first)
        for number, row in enumerate(rows, first):
            _check_length(model, row, number, batch_tokens)
        log_probs = [0.0] * len(rows)
        for numbers in batches_by_length([(row.length, len(row.target)) for row in rows], batch_tokens):
            chosen = [rows[number] for number in numbers]
            sources = None if chosen[0].source is None else [row.source or () for row in chosen]
            for number, found in zip(numbers, token_log_probs(model, sources, [r.target for r in chosen]), strict=True):
                log_probs[number] = math.fsum(found)
        for log_prob, row, (_, text) in zip(log_probs, rows, window, strict=True):
            yield Likelihood(log_prob, len(row.target) + 1, len(text.encode()), _note(row.target))
        first += len(window)


def _windows(pairs: Iterable[SourceAndTarget]) -> Iterator[list[SourceAndTarget]]:
    """Lists of at most 4,096 pairs; shorter lists where the texts are long."""
    window: list[SourceAndTarget] = []
    characters = 0
    for source, target in pairs:
        window.append((source, target))
        characters += len(source or "") + len(target)
        if len(window) >= _WINDOW or characters >= _WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def _encode(model: Model, tokenizers: Tokenizers, window: Sequence[SourceAndTarget], first: int) -> list[_Row]:
    reads = model.reads_source
    for number, (source, _) in enumerate(window, first):
        if (source is not None) != reads:
            wanted = "needs a source for each target" if reads else "reads no source: give None"
            raise ValueError(f"line {number}: a model of kind {model.kind} {wanted}, got {source!r:.60}")
    targets = tokenizers.target.encode_batch([target for _, target in window])
    if not reads:
        return [_Row(None, target) for target in targets]
    sources = tokenizers.source.encode_batch([source or "" for source, _ in window])
    return [_Row(source, target) for source, target in zip(sources, targets, strict=True)]


def _check_length(model: Model, row: _Row, number: int, batch_tokens: int) -> None:
    stacks = {"decoder" if model.reads_source else "only": ("target", row.target)}
    if row.source is not None:
        stacks["encoder"] = ("source", row.source)
    for stack, (side, ids) in stacks.items():
        length, limit = len(ids) + 1, model.limits.get(stack)
        if limit is not None and length > limit:
            raise ValueError(
                f"line {number}: the {side} has {length:,} tokens with EOS, "
                f"but this model has only {limit:,} positions; leave the line out, or shorten it"
            )
        if length > batch_tokens:
            raise ValueError(
                f"line {number}: the {side} has {length:,} tokens with EOS, more than batch_tokens "
                f"({batch_tokens:,}), which bounds the memory; raise it, or leave the line out"
            )


def token_log_probs(model: Any, sources: Sequence[Ids] | None, targets: Sequence[Ids]) -> list[list[float]]:
    """In one pass, the log-probability of each token of each target, and of EOS after it.

    Ids are without BOS and EOS; sources are None for a decoder alone.
    """
    device = next(model.parameters()).device
    lengths = [len(target) + 1 for target in targets]
    ended_BL = padded([[*target, EOS] for target in targets], device)
    inputs_BL = padded([[BOS, *target] for target in targets], device)
    real_BL = torch.arange(max(lengths), device=device) < torch.tensor(lengths, device=device)[:, None]
    with evaluating(model), torch.inference_mode():
        memory = () if sources is None else (model.encode(padded([[*source, EOS] for source in sources], device)),)
        x_ND = model.decode(inputs_BL, *memory)[real_BL]
        found = [
            model.log_probs(xs).gather(1, words[:, None])[:, 0]  # (c, V) at a time, never (N, V)
            for xs, words in zip(x_ND.split(CHUNK), ended_BL[real_BL].split(CHUNK), strict=True)
        ]
    return [row.tolist() for row in torch.cat(found).cpu().double().split(lengths)]


def _note(target: Ids) -> str:
    unknown = list(target).count(UNK)
    return f"{unknown} of {len(target)} tokens are not in the vocabulary and were scored as unknown" if unknown else ""
