"""Compares an exported model with the original: both decode a sample greedily.

Where two words are equally likely up to rounding, the two may choose differently and both be right. So for each text
that differs, the *gap* is reported: at the first different token, how much higher the original's log p is for its own
token than for the other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any, Protocol

from sixfold.config.schema import Config, Decoding
from sixfold.core.ids import CONTROLS
from sixfold.decoding.generator import Generator
from sixfold.decoding.records import Translation
from sixfold.decoding.translator import Translator
from sixfold.foreign.length_limits import LengthLimits
from sixfold.models.model import Model
from sixfold.runs.run import Run
from sixfold.scoring.held_out import own_references
from sixfold.scoring.likelihood import token_log_probs
from sixfold.tasks.task import task_of
from sixfold.text.corpus import open_prepared
from sixfold.text.tokenizer import Tokenizers

CLOSE = 1e-3  # largest gap that rounding explains
_LONGEST = 200  # tokens of a text in the sample
_PROMPT = 8  # tokens of a language model's prompt in the sample

Rows = list[list[int]]


@dataclass(frozen=True)
class AsUsed:
    """The README's program compared with the run, line by line, both with the run's settings."""

    same: int  # lines with the same best text
    cut: int  # lines whose output by the run reaches the length limit
    cut_same: int
    searched: int  # lines where the run's beam search and greedy search differ
    searched_same: int
    drawn: bool  # the run samples, so both were compared without sampling


class Engine(Protocol):
    """An exported model that can be run."""

    def greedy(self, rows: Rows, limit: int) -> Rows:
        """Its greedy outputs, without EOS; rows are sources without EOS, or prompts without BOS."""

    def log_probs(self, rows: Rows, outputs: Rows) -> list[list[float]]:
        """The log-probability of each token of each output, and of EOS after it."""


@dataclass(frozen=True)
class Agreement:
    """How far an exported model agrees with the original on a sample."""

    texts: int
    same: int  # texts that are the same, token by token
    gap: float  # the largest gap of the texts that differ
    log_prob: float  # the largest difference in log-probability of a token of the same text
    as_used: AsUsed | None = None  # with the run's settings; None if that was not compared

    @property
    def share(self) -> float:
        return self.same / self.texts

    @property
    def close(self) -> bool:
        """Whether rounding explains all differences."""
        return self.gap <= CLOSE and self.log_prob <= CLOSE

    def json(self) -> dict[str, Any]:
        return asdict(self)


def compare(model: Model, tokenizers: Tokenizers, texts: Sequence[str], limit: int, engine: Engine) -> Agreement:
    """Decode each text with both, at most `limit` tokens, and compare."""
    rows = _rows(model, tokenizers, texts)
    found = _original(model, tokenizers, texts, limit)
    ours, theirs = [list(each.tokens) for each in found], engine.greedy(rows, limit)
    theirs_scored, gaps = _log_probs(model, rows, theirs), [0.0]
    for mine, other, scored in zip(found, theirs, theirs_scored, strict=True):
        if list(mine.tokens) != other:
            gaps.append(_gap(mine, other, scored))
    difference = _largest(engine.log_probs(rows, theirs), theirs_scored)
    same = sum(mine == other for mine, other in zip(ours, theirs, strict=True))
    return Agreement(len(texts), same, max(gaps), difference)


def _rows(model: Model, tokenizers: Tokenizers, texts: Sequence[str]) -> Rows:
    return (tokenizers.target if not model.reads_source else tokenizers.source).encode_batch(texts)


def _original(model: Any, tokenizers: Tokenizers, texts: Sequence[str], limit: int) -> list[Translation]:
    decoding = Decoding(max_length=limit, max_ratio=1e6)
    if not model.reads_source:
        return Generator(model, tokenizers, decoding).generate(list(texts))
    return Translator(model, tokenizers, decoding).translate(list(texts))


def _log_probs(model: Model, rows: Rows, outputs: Rows) -> list[list[float]]:
    """The original's log-probability of each token of each output, and of EOS after it."""
    if model.reads_source:
        return [
            found
            for start in range(0, len(rows), 32)
            for found in token_log_probs(model, rows[start : start + 32], outputs[start : start + 32])
        ]
    whole = [[*row, *output] for row, output in zip(rows, outputs, strict=True)]
    scored = chain.from_iterable(token_log_probs(model, None, whole[i : i + 32]) for i in range(0, len(whole), 32))
    return [found[len(row) :] for row, found in zip(rows, scored, strict=True)]


def _gap(mine: Translation, other: Sequence[int], scored: Sequence[float]) -> float:
    """log p of our token minus that of theirs, where the texts first differ; EOS counts as a token."""
    pairs = zip(mine.tokens, other, strict=False)
    part = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(mine.tokens), len(other)))
    return _apart(mine.log_probs[part], scored[part])


def _largest(theirs: Iterable[Sequence[float]], ours: Iterable[Sequence[float]]) -> float:
    pairs = zip(chain.from_iterable(theirs), chain.from_iterable(ours), strict=True)
    return max((_apart(a, b) for a, b in pairs), default=0.0)


def _apart(a: float, b: float) -> float:
    """|a − b|, and infinity if that is NaN: `max` would ignore a NaN."""
    distance = 0.0 if a == b else abs(a - b)  # two −∞ are the same
    return math.inf if math.isnan(distance) else distance


def sample(run: Run, model: Model, tokenizers: Tokenizers, config: Config, number: int) -> list[str]:
    """`number` texts of the run's validation and test text; if it has none, random ones."""
    texts = list(islice(_fitting(_own(run, config, tokenizers, model), model, tokenizers), number))
    return texts or list(islice(_fitting(_random(model, tokenizers), model, tokenizers), number))


def fitting(texts: Iterable[str], model: Model, tokenizers: Tokenizers, number: int) -> list[str]:
    """The first `number` texts that are neither empty nor too long."""
    return list(islice(_fitting(texts, model, tokenizers), number))


def _own(run: Run, config: Config, tokenizers: Tokenizers, model: Model) -> Iterator[str]:
    """The run's validation text, then its test text; not every run has them, and files may have been deleted."""
    for part in ("valid", "test"):
        try:
            task = task_of(config)
            if model.reads_source:
                yield from (each.source for each in own_references(run, config, task, tokenizers, part))
            elif part == "valid" and config.data.valid is None:
                held_out = open_prepared(run.data, tokenizers).valid
                if held_out is not None:
                    yield from map(tokenizers.target.decode, map(held_out.target.__getitem__, range(len(held_out))))
            else:
                sources = task.form.sources(config.data, part)
                yield from (text for source in sources for text, _ in source.read())
        except (ValueError, OSError):
            continue


def _fitting(texts: Iterable[str], model: Model, tokenizers: Tokenizers) -> Iterator[str]:
    """The texts that are neither empty nor too long; for a language model, the beginning of each."""
    longest = min(_LONGEST, LengthLimits.of(model.limits).read)
    for text in texts:
        text = text.rstrip("\n")
        (row,) = _rows(model, tokenizers, [text])
        if not model.reads_source:
            text = tokenizers.target.decode(row[: min(_PROMPT, longest)]).partition("\n")[0]
            (row,) = _rows(model, tokenizers, [text])
        if text.strip() and 0 < len(row) <= longest:
            yield text


def _random(model: Model, tokenizers: Tokenizers) -> Iterator[str]:
    chance = random.Random(1)
    tokenizer = tokenizers.target if not model.reads_source else tokenizers.source
    for _ in range(10_000):
        ids = [chance.randrange(len(CONTROLS), len(tokenizer)) for _ in range(chance.randint(1, _PROMPT))]
        yield tokenizer.decode(ids).replace("\n", " ")
