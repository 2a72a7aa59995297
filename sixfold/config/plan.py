"""The plan: values for the keys that a configuration leaves open, worked out from the text, the time and the machine.

    text       rows, tokens, vocabulary ─┐
    time       minutes, steps or neither ├─ one rule for each key, below ─→ choices (key, value, reason)
    machine    floating-point operations ┘
               per second, by width

A key that the user or a recipe gives is never changed; the other keys are chosen to fit it. The rules are numbers in
and numbers out: nothing here reads a file or a clock. docs/plan.md explains them, and benchmarks/README.md ("The plan")
has the measurements behind each constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log
from typing import Any, NamedTuple

from sixfold.config.cost import Facts, Size
from sixfold.config.schema import Config

PLANNED = (  # the keys that the rules below set
    *(f"model.{key}" for key in ("d_model", "d_ff", "heads", "dropout", "modifications")),
    *(
        f"training.{key}"
        for key in ("batch_tokens", "optimizer", "learning_rate", "schedule", "warmup", "label_smoothing")
    ),
    *(f"training.{key}" for key in ("validate_every", "checkpoint_every")),
    "decoding.beam_size",
)

# Vocabulary: with few texts, rare pieces are never learned; with many, long pieces make short sequences.
_VOCABULARY, _AT_WORDS, _GROWTH = 4000, 700_000, 0.4  # pieces for a corpus of this many words; exponent of its size
_FEWEST_PIECES, _MOST_PIECES = 500, 32_000

# Sizes: the larger a model, the more it needs of both text and time.
_PARAMETERS_PER_TOKEN = 10  # most parameters in layers for each token of the training text
_SEEN_PER_PARAMETER = 4.0  # fewest tokens seen in training for each parameter in layers; for a single stack:
_SEEN_PER_PARAMETER_OF_ONE = 2.5
_HEAD = 32  # width of a head, if the model is narrower than 512; 64 from there on

# Time: the share of the given minutes that remains for training steps.
_FOR_STEPS = 0.85  # the rest is for preparing text, validating and saving

# Batches: a short run needs small batches, or it makes too few steps.
_STEPS_WANTED = 2000
_SMALLEST_BATCH, _LARGEST_BATCH, _TYPICAL_BATCH = 1000, 4000, 2000  # tokens

_RATE, _AT_WIDTH = 6e-3, 128  # peak learning rate of muon and adamw at this width; it falls with the width
_LARGEST_RATE = 8e-3
_GENTLER = 10  # divides the rate if the model starts from trained weights, which a larger one would undo
_DROPOUT = ((2, 0.0), (6, 0.05), (20, 0.1), (40, 0.2))  # (epochs below, dropout)
_MOST_DROPOUT = 0.3
_EPOCHS_WITHOUT_LENGTH = 40  # expected of a run that ends when validation stops improving
_WITHOUT_VALIDATION = 20  # epochs of a run without length and without validation text
_PATIENCE = 5  # validations
_SHARES = (0.05, 0.1, 0.2, 0.25, 0.5)  # of the run, between validations
_FOR_VALIDATION = 0.1  # of the time of a run
_TO_VALIDATE = 1.0  # seconds of each validation for copying weights and writing files
_LONG_OUTPUTS = 2  # length of an untrained model's output, divided by that of the reference


class Choice(NamedTuple):
    """A value that the plan gives to a key."""

    key: str  # such as "model.d_model"
    value: Any
    reason: str


_LADDER = ((64, 3), (96, 3), (128, 4), (192, 4), (256, 4), (384, 5), (512, 6), (768, 6), (1024, 6))  # (d_model, layers)

Speed = Callable[[int], float]  # width → floating-point operations per second of training steps on this machine


def vocabulary(words: int) -> int:
    """The pieces of a bpe or unigram vocabulary for a text of this many words (both sides of a pair)."""
    pieces = _VOCABULARY * (max(words, 1) / _AT_WORDS) ** _GROWTH
    return int(min(max(round(pieces / 500) * 500, _FEWEST_PIECES), _MOST_PIECES))


class Planned(NamedTuple):
    """A configuration with a value for every key that it left open, and the choices that were made."""

    config: Config
    choices: list[Choice]
    facts: Facts
    epochs: float | None = None  # expected; None if the run has no length
    epoch_seconds: float | None = None  # expected of an epoch; None if the speed is not known

    def length(self) -> str:
        """The length of the run in words."""
        training, per_epoch = self.config.training, self.facts.tokens / self.config.training.batch_tokens
        about = "" if self.epochs is None else f", about {_short(self.epochs)} epochs"
        if training.minutes is not None:
            steps = "" if self.epochs is None else f", about {_short(self.epochs * per_epoch)} steps"
            return f"{training.minutes:g} minutes{steps}{about}"
        if training.steps is not None:
            return f"{training.steps:,} steps{about}{self._time(self.epochs)}"
        if training.plan is not None:
            return f"as many steps as {training.plan}"
        often = f"often after {_EPOCHS_WITHOUT_LENGTH} epochs{self._time(_EPOCHS_WITHOUT_LENGTH)}"
        return f"until validation stops improving, {often}; an epoch is about {_short(per_epoch)} steps"

    def _time(self, epochs: float | None) -> str:
        if epochs is None or self.epoch_seconds is None:
            return ""
        minutes = epochs * self.epoch_seconds / _FOR_STEPS / 60
        return f", about {_short(minutes)} minutes" if minutes < 180 else f", about {_short(minutes / 60)} hours"


def make_plan(config: Config, facts: Facts, speed: Speed) -> Planned:
    """Apply all rules."""
    planner = _Planner(config, facts, speed)
    for rule in (_sizes, _positions, _batch, _optimizer, _rate, _length, _dropout, _smoothing, _beam, _validation):
        for choice in rule(planner):
            planner.add(choice)
    size = planner.size
    return Planned(planner.config, planner.choices, facts, planner.epochs(size), planner.epoch_seconds(size))


class _Planner:
    """A configuration that is being completed."""

    def __init__(self, config: Config, facts: Facts, speed: Speed):
        self.config, self.facts, self._speed = config, facts, speed
        self.choices: list[Choice] = []

    def add(self, choice: Choice) -> None:
        """Set a value, unless it is given."""
        if self.gives(choice.key):
            return
        section, _, name = choice.key.partition(".")
        changed = getattr(self.config, section).model_copy(update={name: choice.value})
        self.config = self.config.model_copy(update={section: changed})
        self.choices.append(choice)

    def gives(self, *keys: str) -> bool:
        """Whether one of these keys has a value already. Null counts as none."""
        split = [key.partition(".") for key in keys]
        sections = [(getattr(self.config, section), name) for section, _, name in split]
        return any(name in values.model_fields_set and getattr(values, name) is not None for values, name in sections)

    @property
    def size(self) -> Size:
        """The size of the configuration as it is now."""
        model = self.config.model
        return Size(model.d_model, model.layers or model.encoder_layers or 6, model.d_ff, self.facts.pairs)

    def seconds(self) -> float | None:
        """Time for training steps; None if the run has no minutes."""
        minutes = self.config.training.minutes
        return None if minutes is None else 60 * minutes * _FOR_STEPS

    def epochs(self, size: Size) -> float | None:
        """Epochs that fit into the run; None if it has no length."""
        training = self.config.training
        if training.steps is not None:
            return training.steps * training.batch_tokens / self.facts.tokens
        seconds = self.seconds()
        return None if seconds is None else seconds / self.epoch_seconds(size)

    def epoch_seconds(self, size: Size) -> float:
        """The time of an epoch on this machine."""
        training = self.config.training
        given = self.gives("training.optimizer")
        muon = training.optimizer == "muon" if given else not self.facts.trained
        batch = training.batch_tokens if self.gives("training.batch_tokens") else _TYPICAL_BATCH
        updates = self.facts.tokens / batch * size.update() if muon else 0
        return (size.operations(self.facts) * self.facts.work + updates) / self._speed(size.d_model)


def _sizes(planner: _Planner) -> Iterator[Choice]:
    """The largest model for which the text has enough tokens and, in a run with a length, reads enough of them."""
    model, facts = planner.config.model, planner.facts
    if planner.gives("model.d_model"):
        size, reason = _at_width(model.d_model, facts.pairs), f"for a width of {model.d_model}"
    else:
        size, reason = _fitting(planner)
    yield Choice("model.d_model", size.d_model, reason)
    width = planner.config.model.d_model
    yield Choice("model.d_ff", 4 * width, "4 × d_model")
    heads = usual_heads(width)
    if not planner.gives("model.d_head"):
        yield Choice("model.heads", heads, f"each {width // heads} wide")
    depths = [f"model.{name}" for name in ("encoder_layers", "decoder_layers")]
    if planner.gives("model.layers") or not planner.gives(*depths):
        depths = ["model.layers"]
    for depth in depths:
        yield Choice(depth, size.layers, f"usual for a width of {width}")


def _positions(planner: _Planner) -> Iterator[Choice]:
    """Rotary positions, besides the modifications that --modify adds, unless one of these is about positions."""
    model, facts = planner.config.model, planner.facts
    width = model.d_head or model.d_model // model.heads
    if facts.rotates and not facts.trained and width % 2 == 0:
        reason = "learns faster than with sinusoids, which [] keeps"
        yield Choice("model.modifications", [*model.modifications, "rotary"], reason)


def _fitting(planner: _Planner) -> tuple[Size, str]:
    """The size of a model whose width is not given, and the reason."""
    facts = planner.facts
    sizes = [_at_width(width, facts.pairs) for width, _ in _LADDER]
    chosen, reason = sizes[0], "the smallest: there is little text or time"
    for size in sizes:
        parameters, epochs = size.parameters(), planner.epochs(size)
        if parameters > _PARAMETERS_PER_TOKEN * facts.distinct_tokens:
            break
        seen = None if epochs is None else epochs * facts.tokens
        fewest = parameters * (_SEEN_PER_PARAMETER if facts.pairs else _SEEN_PER_PARAMETER_OF_ONE)
        if seen is not None and seen < fewest:
            break
        of = f"the text has {_short(facts.tokens)}" if seen is None else f"this run reads {_short(seen)}"
        chosen, reason = size, f"{_short(parameters)} weights in layers; {of} tokens"
    return chosen, reason


def usual_heads(width: int) -> int:
    """The number of heads that makes their width even (rotary positions turn pairs of numbers) and nearly the usual."""
    usual = 64 if width >= 512 else _HEAD
    divisors = [n for n in range(1, width + 1) if width % n == 0]
    even = [n for n in divisors if width // n % 2 == 0]
    return min(even or divisors, key=lambda n: abs(log(width / n / usual)))


def _at_width(width: int, pairs: bool) -> Size:
    """The size of the ladder with this width, or with the nearest one below it."""
    layers = [layers for d, layers in _LADDER if d <= width] or [_LADDER[0][1]]
    return Size(width, layers[-1], 4 * width, pairs)


def _batch(planner: _Planner) -> Iterator[Choice]:
    """The size of a batch: small enough for about two thousand steps; in a long run, the most efficient size."""
    if planner.config.training.steps is not None:
        yield Choice("training.batch_tokens", _LARGEST_BATCH, "usual")
        return
    epochs = planner.epochs(planner.size) or _EPOCHS_WITHOUT_LENGTH
    seen = epochs * planner.facts.tokens
    tokens = min(max(round(seen / _STEPS_WANTED / 500) * 500, _SMALLEST_BATCH), _LARGEST_BATCH)
    yield Choice("training.batch_tokens", tokens, f"about {_short(seen / tokens)} steps")


def _optimizer(planner: _Planner) -> Iterator[Choice]:
    if planner.facts.trained:
        yield Choice("training.optimizer", "adamw", "changes trained weights gently")
    else:
        yield Choice("training.optimizer", "muon", "needs fewer steps than adamw")


def _rate(planner: _Planner) -> Iterator[Choice]:
    """Proportional to 1 / d_model for adamw and muon; the other optimisers have their own usual rates."""
    width, optimizer = planner.config.model.d_model, planner.config.training.optimizer
    usual = {"adafactor": 1e-2, "sgd": 0.1}.get(optimizer)
    if usual is not None:
        yield Choice("training.learning_rate", usual, f"usual for {optimizer}")
        return
    rate, why = min(_RATE * _AT_WIDTH / width, _LARGEST_RATE), f"for a width of {width}"
    if planner.facts.trained:
        rate, why = rate / _GENTLER, f"1/{_GENTLER} of the rate {why}: the weights are trained already"
    yield Choice("training.learning_rate", float(f"{rate:.2g}"), why)


def _length(planner: _Planner) -> Iterator[Choice]:
    """With a length, the rate rises and falls within it. Without one, the run ends when validation stops improving."""
    training, facts = planner.config.training, planner.facts
    a_length = training.steps is not None or training.minutes is not None or training.plan is not None
    needs_one = "" if a_length else _needs_length(planner)
    if needs_one:
        steps = max(round(_WITHOUT_VALIDATION * facts.tokens / training.batch_tokens), 100)
        yield Choice("training.steps", steps, f"{_WITHOUT_VALIDATION} epochs: {needs_one}")
    if a_length or needs_one:
        yield Choice("training.schedule", "cosine", "falls to 0 at the end of the run")
        yield Choice("training.warmup", 0.1, "a tenth of the run")
        return
    per_epoch = facts.tokens / training.batch_tokens
    yield Choice(
        "training.schedule", "warmup_stable_decay", "no length is given: falls when validation stops improving"
    )
    yield Choice("training.patience", _PATIENCE, "validations without improvement, then the rate falls")
    yield Choice("training.warmup", int(min(max(2 * per_epoch, 100), 1000)), "steps: two epochs, from 100 to 1,000")
    yield Choice("training.validate_every", int(min(max(per_epoch, 100), 2000)), "steps: an epoch, from 100 to 2,000")
    yield Choice("training.checkpoint_every", int(min(max(per_epoch, 100), 2000)), "as validate_every")


def _needs_length(planner: _Planner) -> str:
    """Why a run can't end by patience; empty if it can."""
    training = planner.config.training
    if not planner.facts.valid_rows:
        return "no validation text tells when to stop"
    if planner.gives("training.schedule") and training.schedule not in ("constant", "warmup_stable_decay"):
        return f"the schedule {training.schedule} needs a length"
    for key in ("warmup", "validate_every", "checkpoint_every"):
        if planner.gives(f"training.{key}") and isinstance(getattr(training, key), float):
            return f"training.{key} is a share of the run"
    return ""


def _dropout(planner: _Planner) -> Iterator[Choice]:
    """The more often the model sees the same text, the more dropout."""
    epochs = planner.epochs(planner.size)
    seen = _EPOCHS_WITHOUT_LENGTH if epochs is None else epochs
    seen *= planner.facts.tokens / planner.facts.distinct_tokens
    value = next((value for below, value in _DROPOUT if seen < below), _MOST_DROPOUT)
    yield Choice("model.dropout", value, f"about {_short(seen)} epochs" if epochs is not None else "for many epochs")


def _smoothing(planner: _Planner) -> Iterator[Choice]:
    if not planner.facts.pairs and not planner.facts.labels:
        yield Choice("training.label_smoothing", 0.0, "plain text is scored by its likelihood")


def _validation(planner: _Planner) -> Iterator[Choice]:
    """Validate as often as possible within a tenth of the time."""
    costs = _validation_share(planner)
    share = next((share for share in _SHARES if costs / share <= _FOR_VALIDATION), _SHARES[-1])
    minutes = planner.config.training.minutes
    yield Choice("training.validate_every", share, "of the run: all validations take at most a tenth of it")
    yield Choice("training.checkpoint_every", min(share, 5 / minutes if minutes else 0.05), "of the run")


def _validation_share(planner: _Planner) -> float:
    """The time of one validation as a share of the run's.

    It computes the loss and decodes. The outputs are assumed to be longer than those of a trained model.
    """
    facts, epochs = planner.facts, planner.epochs(planner.size) or _EPOCHS_WITHOUT_LENGTH
    forwards = 1 + (_LONG_OUTPUTS * planner.config.decoding.beam_size if facts.pairs else 0)
    seconds = planner.seconds()
    share = facts.valid_rows / facts.rows * forwards / 3 / (epochs * facts.work)
    return share + (_TO_VALIDATE / seconds if seconds else 0)


def _beam(planner: _Planner) -> Iterator[Choice]:
    if planner.facts.pairs and not planner.gives("decoding.sample"):
        yield Choice("decoding.beam_size", 4, "better than greedy search")


def _short(number: float) -> str:
    """1234567 → 1.2M"""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.2g}{letter}" if number < 100 * unit else f"{number / unit:.0f}{letter}"
    return f"{number:.2g}" if number < 100 else f"{number:.0f}"
