"""The input and the output of a translator: lines and translations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from sixfold.decoding.trace import Trace
from sixfold.text.tokenizer import checked


class Line(NamedTuple):
    """A text to be translated or continued, with the demands on its output."""

    text: str
    prefix: str | None = None  # the beginning of the output
    terms: tuple[str, ...] = ()  # texts that must occur in it

    def mistake(self) -> ValueError | None:
        """The error if one of its texts is not a text, or has half of a surrogate pair."""
        try:
            for text in (self.text, self.prefix or "", *self.terms):
                checked(text)
        except ValueError as error:
            return error
        return None


class Alignment(NamedTuple):
    """For each token and word of an output, the source piece and word with most attention; see `decoding.alignment`."""

    source: tuple[str, ...]  # the readable pieces of the source
    tokens: tuple[int, ...]  # for each token of the output, the index of a source piece
    words: tuple[tuple[int, int], ...]  # (word of the output, word of the source), counted from 0


@dataclass(frozen=True)
class Translation:
    """One output: a translation, or the continuation of a prompt."""

    text: str = ""
    score: float = 0.0  # log_prob under the length formula
    tokens: tuple[int, ...] = ()  # without BOS and EOS
    log_probs: tuple[float, ...] = ()  # the model's own log-probability of each token, and then of the end
    ended: bool = True  # False: it reached the length limit
    note: str = ""  # a message for the user, such as that the source was truncated
    others: tuple[Translation, ...] = ()  # the other outputs, the best first
    alignment: Alignment | None = None  # on request
    attention: Tensor | None = None  # (tokens and end, source pieces and end), on request
    trace: Trace | None = None  # the candidates that each step compared, on request

    @property
    def n_best(self) -> tuple[Translation, ...]:
        """All outputs, the best first."""
        return (self, *self.others)

    @property
    def log_prob(self) -> float:
        """The model's own log-probability of the whole output, its end included."""
        return math.fsum(self.log_probs)

    @property
    def confidence(self) -> tuple[float, ...]:
        """The probability of each token, and of the end, given those before."""
        return tuple(math.exp(log_p) for log_p in self.log_probs)


def lines_of(
    texts: Sequence[str], prefixes: Sequence[str | None] | None, terms: Sequence[Iterable[str]] | None
) -> list[Line]:
    """One line for each text, with its prefix and its terms."""
    for name, more in (("prefixes", prefixes), ("terms", terms)):
        if isinstance(more, str) or (more is not None and len(more) != len(texts)):
            got = "one text" if isinstance(more, str) else str(len(more))
            raise ValueError(f"{name}: give one for each of the {len(texts)} texts, got {got}")
    if terms is not None and any(isinstance(several, str) for several in terms):
        raise ValueError("terms: give a list of terms for each text, got a text")
    begin = prefixes or [None] * len(texts)
    demand = terms or [()] * len(texts)
    return [Line(*line) for line in zip(texts, begin, map(tuple, demand), strict=True)]


def to_json(translation: Translation) -> dict[str, Any]:
    """A translation without its attention and trace, to be sent to another process."""
    others = [to_json(other) for other in translation.others]
    return {**vars(translation), "attention": None, "trace": None, "others": others}


def from_json(record: Mapping[str, Any]) -> Translation:
    alignment = record["alignment"]
    if alignment is not None:
        source, tokens, words = alignment
        alignment = Alignment(tuple(source), tuple(tokens), tuple((a, b) for a, b in words))
    several = {key: tuple(record[key]) for key in ("tokens", "log_probs")}
    others = tuple(from_json(other) for other in record["others"])
    return Translation(**{**record, **several, "alignment": alignment, "others": others})
