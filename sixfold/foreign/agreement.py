"""Whether an exported model does what the original does: both write a sample, word by word the likeliest.

Both may be right and yet part where two words are equally likely to the last digit. So of each text that differs it is
said how much likelier the original finds its own word, there where the texts part: their *gap*.
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
from sixfold.text.tokenizer import Tokenizers

CLOSE = 1e-3  # a gap that rounding explains
_LONGEST = 200  # tokens of a text in the sample
_PROMPT = 8  # tokens of a text that a language model reads, before it goes on by itself

Rows = list[list[int]]


@dataclass(frozen=True)
class AsUsed:
    """The README's program beside the run, each line by line with the run's settings."""

    same: int  # lines with the same best text
    cut: int  # lines whose output by the run reaches the length limit
    cut_same: int
    searched: int  # lines where the run's beam search writes another text than greedy search
    searched_same: int
    drawn: bool  # the run samples; compared is its search for the likeliest, with its other settings


class Engine(Protocol):
    """Something that writes as the model does."""

    def greedy(self, rows: Rows, limit: int) -> Rows:
        """What it writes, without EOS; rows are sources without EOS, or prompts without BOS."""

    def log_probs(self, rows: Rows, outputs: Rows) -> list[list[float]]:
        """Of each token of outputs, and of their ends."""


@dataclass(frozen=True)
class Agreement:
    """Of two engines on one sample."""

    texts: int
    same: int  # texts that are the same, token by token
    gap: float  # the largest, of those that are not
    log_prob: float  # the largest difference of the log-probability of one token of the same text
    as_used: AsUsed | None = None  # with the run's settings; None: that was not compared

    @property
    def share(self) -> float:
        return self.same / self.texts

    @property
    def close(self) -> bool:
        """Whether all differences are those of rounding."""
        return self.gap <= CLOSE and self.log_prob <= CLOSE

    def json(self) -> dict[str, Any]:
        return asdict(self)


def compare(model: Model, tokenizers: Tokenizers, texts: Sequence[str], limit: int, engine: Engine) -> Agreement:
    """Let both write at most `limit` tokens for each text."""
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
    """By the original, of each token of outputs and of their ends."""
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
    """log p of our word less that of theirs, where the texts part; an end is a word, too."""
    pairs = zip(mine.tokens, other, strict=False)
    part = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(mine.tokens), len(other)))
    return _apart(mine.log_probs[part], scored[part])


def _largest(theirs: Iterable[Sequence[float]], ours: Iterable[Sequence[float]]) -> float:
    pairs = zip(chain.from_iterable(theirs), chain.from_iterable(ours), strict=True)
    return max((_apart(a, b) for a, b in pairs), default=0.0)


def _apart(a: float, b: float) -> float:
    """NaN is infinitely far from everything: `max` would take no notice of it."""
    distance = 0.0 if a == b else abs(a - b)  # two −∞ are the same
    return math.inf if math.isnan(distance) else distance


def sample(run: Run, model: Model, tokenizers: Tokenizers, config: Config, number: int) -> list[str]:
    """So many texts: of those that the run was validated or is to be tested on, or if it has none, random ones."""
    texts = list(islice(_fitting(_own(run, config, tokenizers, model), model, tokenizers), number))
    return texts or list(islice(_fitting(_random(model, tokenizers), model, tokenizers), number))


def fitting(texts: Iterable[str], model: Model, tokenizers: Tokenizers, number: int) -> list[str]:
    """Of a file, the first texts that are neither empty nor too long."""
    return list(islice(_fitting(texts, model, tokenizers), number))


def _own(run: Run, config: Config, tokenizers: Tokenizers, model: Model) -> Iterator[str]:
    """First what it was validated on. Not all runs have such text, and files may have gone since."""
    for part in ("valid", "test"):
        try:
            task = task_of(config)
            if model.reads_source:
                yield from (each.source for each in own_references(run, config, task, tokenizers, part))
            else:
                sources = task.form.sources(config.data, part)
                yield from (text for source in sources for text, _ in source.read())
        except (ValueError, OSError):
            continue


def _fitting(texts: Iterable[str], model: Model, tokenizers: Tokenizers) -> Iterator[str]:
    """A language model reads the beginnings."""
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
