"""Advice before training: settings that can't work well with this text and this time, and what to do about each.

Each kind of advice is a function of a completed configuration and the facts of its text. It returns a sentence, or None
if the problem in its docstring does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sixfold.config.plan import Planned
from sixfold.config.plan import vocabulary as usual_vocabulary
from sixfold.config.schema import TokenizerKinds, Vocabularies

# (lowest, highest) peak learning rates with which models of usual sizes learn
_USUAL_RATES = {"adamw": (1e-5, 1e-2), "muon": (1e-5, 5e-2), "adafactor": (1e-4, 0.1), "sgd": (1e-3, 3.0)}
_FEWEST_OCCURRENCES = 10  # average occurrences of a piece in the text; with fewer, most pieces are hardly learned
_PIECES = ("bpe", "unigram")  # the kinds whose vocabulary is filled to its size; for the others it is a limit


def advice(planned: Planned) -> Iterator[str]:
    """All advice for a run."""
    for rule in (long_warmup, unusual_rate, less_than_an_epoch, large_vocabulary):
        sentence = rule(planned)
        if sentence is not None:
            yield f"warning: {sentence}"


def long_warmup(planned: Planned) -> str | None:
    """The warm-up is as long as the run, or longer."""
    warmup, steps = planned.config.training.warmup, _steps(planned)
    if isinstance(warmup, float) or steps is None or warmup < steps:
        return None
    return (
        f"training.warmup is {warmup:,} steps, but the run has about {steps:,.0f}: the learning rate would never be at "
        f"its peak; give a share of the run, as in --training.warmup 10%, or leave it out"
    )


def unusual_rate(planned: Planned) -> str | None:
    """The learning rate is far from those that work with this optimiser."""
    training = planned.config.training
    lowest, highest = _USUAL_RATES[training.optimizer]
    if lowest <= training.learning_rate <= highest:
        return None
    effect = "the loss may grow" if training.learning_rate > highest else "the model may hardly learn"
    return (
        f"training.learning_rate is {training.learning_rate:g}, but with {training.optimizer} rates from {lowest:g} to "
        f"{highest:g} are usual: {effect}; leave it out to have it planned"
    )


def less_than_an_epoch(planned: Planned) -> str | None:
    """The model does not see all of the text."""
    steps, batch, tokens = _steps(planned), planned.config.training.batch_tokens, planned.facts.tokens
    if steps is None or steps * batch >= tokens:
        return None
    key = "training.minutes" if planned.config.training.minutes is not None else "training.steps"
    return (
        f"about {steps:,.0f} steps of {batch:,} tokens see only {steps * batch / tokens:.0%} of the training text: "
        f"raise {key} to use all of it"
    )


def large_vocabulary(planned: Planned) -> str | None:
    """The text has too few tokens for the pieces of a vocabulary whose size was given."""
    facts, data = planned.facts, planned.config.data
    if facts.trained or any(choice.key == "data.vocabulary" for choice in planned.choices):
        return None
    if isinstance(data.vocabulary, int) and isinstance(data.tokenizer, str):
        sides = [("", data.vocabulary, data.tokenizer, facts.source_tokens + facts.target_tokens)]
    else:
        sides = [
            (f".{side}", _of(data.vocabulary, side), _of(data.tokenizer, side), tokens)
            for side, tokens in (("source", facts.source_tokens), ("target", facts.target_tokens))
        ]
    for side, size, kind, tokens in sides:
        if size is not None and kind in _PIECES and tokens < _FEWEST_OCCURRENCES * size:
            return (
                f"data.vocabulary{side} is {size:,}, but the training text has only {tokens:,} tokens: most pieces "
                f"would hardly ever be seen; give about {usual_vocabulary(tokens):,}, or leave it out"
            )
    return None


def _of(value: Any, side: str) -> Any:
    """The value for one side, where both may share it."""
    return getattr(value, side) if isinstance(value, Vocabularies | TokenizerKinds) else value


def _steps(planned: Planned) -> float | None:
    """The expected number of steps; None if the length of the run is not configured."""
    training = planned.config.training
    if training.steps is not None:
        return training.steps
    return None if planned.epochs is None else planned.epochs * planned.facts.tokens / training.batch_tokens
