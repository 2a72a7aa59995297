"""Compares an exported model with the original: both decode a sample greedily.

If two words are equally likely up to rounding, the models may choose different ones, and both are right. So if a text
differs, its *gap* is reported. It is taken at the first token that differs: the original model's log p of the token
that it chose, minus its log p of the token that the exported model chose.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any, Protocol

from sixfold.config.schema import Config, Decoding
from sixfold.core.ids import CONTROLS
from sixfold.decoding.equalities import largest
from sixfold.decoding.front_of import front_of
from sixfold.decoding.records import Translation
from sixfold.foreign.length_limits import LengthLimits
from sixfold.models.model import Model
from sixfold.runs.run import Run
from sixfold.scoring.held_out import own_references
from sixfold.scoring.likelihood import token_log_probs
from sixfold.tasks.task import task_of
from sixfold.text.corpus import open_prepared
from sixfold.text.tokenizer import Tokenizers

CLOSE = 1e-3  # largest gap that rounding explains
_LONGEST = 200  # most tokens of a text in the sample
_PROMPT = 8  # most tokens of a language model's prompt in the sample

Rows = list[list[int]]


@dataclass(frozen=True)
class AsUsed:
    """The program in the export's README compared with the run, line by line, both with the run's settings."""

    same: int  # lines for which both write the same best text
    cut: int  # lines for which the run's output reaches the length limit
    cut_same: int  # of these, lines for which both write the same
    searched: int  # lines for which the run's beam search and greedy search write different texts
    searched_same: int  # of these, lines for which both write the same
    drawn: bool  # whether the run's settings ask for sampling; both were then compared without it


class ExportedModel(Protocol):
    """An exported model that can be run."""

    def greedy(self, rows: Rows, limit: int) -> Rows:
        """The greedy output for each row, without EOS. A row is a source without EOS, or a prompt without BOS."""

    def log_probs(self, rows: Rows, outputs: Rows) -> list[list[float]]:
        """The log-probability of each token of each output, and of EOS after it."""


@dataclass(frozen=True)
class Agreement:
    """How far an exported model agrees with the original on a sample of texts."""

    texts: int
    same: int  # texts for which both models write the same tokens
    gap: float  # the largest gap of a text, as defined at the top of this file
    log_prob: float  # the largest difference between the two models' log p of one token, in the same text
    as_used: AsUsed | None = None  # the comparison with the run's settings, if it was made

    @property
    def share(self) -> float:
        return self.same / self.texts

    @property
    def close(self) -> bool:
        """Whether rounding explains all differences."""
        return self.gap <= CLOSE and self.log_prob <= CLOSE

    def json(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    model: Model, tokenizers: Tokenizers, texts: Sequence[str], limit: int, exported: ExportedModel
) -> Agreement:
    """Decode each text with the model and with the exported one, at most `limit` tokens, and compare."""
    rows = _rows(model, tokenizers, texts)
    originals = decoded(model, tokenizers, texts, Decoding(max_length=limit, max_ratio=1e6))
    outputs = exported.greedy(rows, limit)
    log_probs = _log_probs(model, rows, outputs)
    differing = [
        _gap(original, output, scored)
        for original, output, scored in zip(originals, outputs, log_probs, strict=True)
        if list(original.tokens) != output
    ]
    difference = _largest_difference(exported.log_probs(rows, outputs), log_probs)
    return Agreement(len(texts), len(texts) - len(differing), largest(differing), difference)


def _rows(model: Model, tokenizers: Tokenizers, texts: Sequence[str]) -> Rows:
    return (tokenizers.target if not model.reads_source else tokenizers.source).encode_batch(texts)


def decoded(model: Model, tokenizers: Tokenizers, texts: Sequence[str], decoding: Decoding) -> list[Translation]:
    """The original model's outputs."""
    return list(front_of(model, tokenizers, decoding).session().stream(texts))


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


def _gap(original: Translation, output: Sequence[int], log_probs: Sequence[float]) -> float:
    """The gap of a text; EOS counts as a token. `log_probs` are the original model's, of `output` and EOS."""
    pairs = zip(original.tokens, output, strict=False)
    index = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(original.tokens), len(output)))
    return _distance(original.log_probs[index], log_probs[index])


def _largest_difference(first: Iterable[Sequence[float]], second: Iterable[Sequence[float]]) -> float:
    pairs = zip(chain.from_iterable(first), chain.from_iterable(second), strict=True)
    return largest(_distance(a, b) for a, b in pairs)


def _distance(a: float, b: float) -> float:
    return 0.0 if a == b else abs(a - b)  # −∞ minus −∞ would be NaN


def sample(run: Run, model: Model, tokenizers: Tokenizers, config: Config, number: int) -> list[str]:
    """The first `number` usable texts of the run's validation and test data; random texts if there are none."""
    texts = first_usable(_held_out(run, config, tokenizers, model), model, tokenizers, number)
    return texts or first_usable(_random(model, tokenizers), model, tokenizers, number)


def first_usable(texts: Iterable[str], model: Model, tokenizers: Tokenizers, number: int) -> list[str]:
    """The first `number` texts that are neither empty nor too long; for a language model, the beginning of each."""
    return list(islice(_usable(texts, model, tokenizers), number))


def _held_out(run: Run, config: Config, tokenizers: Tokenizers, model: Model) -> Iterator[str]:
    """The texts of the run's validation data, then of its test data. Files that are missing or damaged are skipped."""
    for split in ("valid", "test"):
        try:
            task = task_of(config)
            if model.reads_source:
                yield from (each.source for each in own_references(run, config, task, tokenizers, split))
            elif split == "valid" and config.data.valid is None:
                held_out = open_prepared(run.data, tokenizers).valid
                if held_out is not None:
                    yield from map(tokenizers.target.decode, map(held_out.target.__getitem__, range(len(held_out))))
            else:
                sources = task.form.sources(config.data, split)
                yield from (text for source in sources for text, _ in source.read())
        except (ValueError, OSError):
            continue


def _usable(texts: Iterable[str], model: Model, tokenizers: Tokenizers) -> Iterator[str]:
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
    """Texts of random tokens of the vocabulary."""
    chance = random.Random(1)
    tokenizer = tokenizers.target if not model.reads_source else tokenizers.source
    for _ in range(10_000):
        ids = [chance.randrange(len(CONTROLS), len(tokenizer)) for _ in range(chance.randint(1, _PROMPT))]
        yield tokenizer.decode(ids).replace("\n", " ")
