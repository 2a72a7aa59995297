"""Equalities of decoding: cached = uncached, alone = in a batch (also in int8), fused = explicit attention.

Letters: B rows, N tokens of all rows that are not padding, V words, D model width, w hypotheses of a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sixfold.config.schema import Decoding, change_decoding
from sixfold.core.ids import BOS, EOS, PAD
from sixfold.core.tap import Tap
from sixfold.decoding.cpu.int8 import quantised
from sixfold.decoding.generator import Generator
from sixfold.decoding.ordered import OrderedStream
from sixfold.decoding.records import Translation
from sixfold.decoding.session import DecodingSession
from sixfold.decoding.step import Step, padded
from sixfold.decoding.translator import Translator
from sixfold.models.model import Model, evaluating
from sixfold.transformer import Attention, CrossAttention
from sixfold.verify.equality import Measured, equality
from sixfold.verify.subject import NotApplicable, SampleText, VerifiedRun

# Logits are of the order of 10, so float32 errs by about 1e-6; after many layers, a difference of two errs by 1e-5.
ROUNDING = 1e-4
ROUNDING_TO_8_BITS = 1e-5  # between two roundings to int8, values are computed in float64, or row by row
_BEAMS = (1, 4)
_WITHOUT_CACHE = 8  # sentences decoded without a cache, which is slow


@equality(
    "cache",
    "cached = uncached",
    left="decoded with the cache",
    right="decoded without: every step reads the complete text",
    tolerance=ROUNDING,
)
def cache(subject: VerifiedRun) -> Measured:
    """Greedily and with a beam: the same texts, and the same log-probability of each token."""
    _need_text(subject)
    texts = [sample.text for sample in subject.samples[:_WITHOUT_CACHE]]
    found = []
    for beam in _BEAMS:
        task = _task(subject, subject.model, beam)
        cached = _decode(subject, task, texts)
        task.step = UncachedStep(subject.model)
        found.append(compare(cached, _decode(subject, task, texts)))
    return _worst(found)


@equality(
    "batch",
    "alone = in a batch",
    left="each sentence alone",
    right="all in one batch, and in another order, joining and leaving",
    tolerance=ROUNDING,
)
def batch(subject: VerifiedRun) -> Measured:
    if not subject.model.writes_text:
        return _states_in_a_batch(subject, subject.model)
    return in_company(subject, subject.model)


@equality(
    "int8",
    "alone = in a batch, in int8",
    left="each sentence alone",
    right="all in one batch, and in another order",
    tolerance=ROUNDING_TO_8_BITS,
)
def int8(subject: VerifiedRun) -> Measured:
    """`batch` with linear maps in int8, where the last bit of an activation can decide how it is rounded."""
    if next(subject.model.parameters()).device.type != "cpu":
        raise NotApplicable("int8 works on a CPU only")
    model = quantised(subject.model)
    return _states_in_a_batch(subject, model) if not model.writes_text else in_company(subject, model)


def in_company(subject: VerifiedRun, model: Model) -> Measured:
    """Compare each sample decoded alone with all in one batch, and with all in reverse order in small batches."""
    texts = [sample.text for sample in subject.samples]
    longest = max(len(sample.source or sample.target) for sample in subject.samples) + 1
    found = []
    for beam in _BEAMS:
        task = _task(subject, model, beam)
        alone = [_decode(subject, task, [text])[0] for text in texts]
        together = _decode(subject, task, texts)
        few = _task(subject, model, beam, batch_tokens=4 * beam * longest)
        reversed_order = _decode(subject, few, texts[::-1])[::-1]
        found += [compare(alone, together), compare(alone, reversed_order)]
    return _worst(found)


def _states_in_a_batch(subject: VerifiedRun, model: Model) -> Measured:
    """`in_company` for a model that writes no text: its log-probabilities, or its states, of each token."""
    together = said(model, subject.samples)
    alone = torch.cat([said(model, [sample]) for sample in subject.samples])
    return Measured(_apart(alone, together), right="all in one batch")


@equality(
    "attention",
    "fused = explicit attention",
    left="by the fused kernel",
    right="step by step, with the weights",
    tolerance=ROUNDING,
)
def attention(subject: VerifiedRun) -> Measured:
    """Compare the log-probabilities of all words after each token; an open tap makes attention explicit."""
    if not any(_can_be_fused(part) for part in subject.model.modules()):
        raise NotApplicable("no part of this model uses the fused kernel")
    tap = Tap()
    explicit = said(subject.model, subject.samples, tap)
    if not len(tap):
        raise NotApplicable("no part of this model has attention weights")
    return Measured(_apart(said(subject.model, subject.samples), explicit))


def _can_be_fused(part: Any) -> bool:
    """Whether it is an attention whose position does not need the weights."""
    return isinstance(part, CrossAttention) or (isinstance(part, Attention) and not part.position.fills("values"))


@torch.inference_mode()
def said(model: Any, samples: Sequence[SampleText], tap: Tap | None = None) -> Tensor:
    """The model's output after each token of the samples: log-probabilities (N, V), or states (N, D)."""
    device = next(model.parameters()).device
    targets = [sample.target for sample in samples]
    with evaluating(model):
        if not model.writes_text:
            ids = padded(targets, device)
            x = model.encode(ids, tap=tap)[ids != PAD]
            return x if model.sizes.classes else model.log_probs(x)
        memory = []
        if model.reads_source:
            memory = [model.encode(padded([[*sample.source, EOS] for sample in samples], device), tap=tap)]
        ids = padded([[BOS, *target] for target in targets], device)
        return model.log_probs(model.decode(ids, *memory, tap=tap)[ids != PAD])


def _apart(left: Tensor, right: Tensor) -> float:
    """The largest difference, relative for numbers above 1. Equal infinities have difference 0."""
    return float((torch.where(left == right, 0.0, left - right).abs() / left.abs().clamp(min=1)).max())


# Decoding, as `translate` and `generate` do it ------------------------------------------------------------------


def _need_text(subject: VerifiedRun) -> None:
    if not subject.model.writes_text:
        raise NotApplicable("an encoder_only model writes no text, and keeps no cache")


def _task(subject: VerifiedRun, model: Any, beam: int, **changes: Any) -> DecodingSession:
    """A decoding session with the run's settings, except for those set here."""
    plain = {
        "beam_size": beam,
        "beam_groups": 1,
        "n_best": 1,
        "sample": False,
        "coverage_penalty": 0.0,  # it needs attention weights, which UncachedStep does not return
        "min_length": 0,
        "precision": "float32",  # for another precision the caller passes a converted model
        "max_length": min(subject.length, subject.config.decoding.max_length),
    }
    decoding: Decoding = change_decoding(subject.config.decoding, {**plain, **changes})
    front = Translator if model.reads_source else Generator
    session: DecodingSession = front(model, subject.tokenizers, decoding).session()
    return session


def _decode(subject: VerifiedRun, task: Any, texts: Sequence[str]) -> list[Translation]:
    with evaluating(*task.models):
        return list(OrderedStream(task, texts))


def compare(left: Sequence[Translation], right: Sequence[Translation]) -> Measured:
    """The largest difference between two lists of outputs, and how many texts differ."""
    different = sum(a.tokens != b.tokens for a, b in zip(left, right, strict=True))
    note = f"{different} of {len(left)} texts differ" if different else ""
    return Measured(furthest(_gap(a, b) for a, b in zip(left, right, strict=True)), note)


def furthest(gaps: Iterable[float]) -> float:
    """The largest gap; NaN counts as infinite."""
    return max((math.inf if math.isnan(gap) else gap for gap in gaps), default=0.0)


def _gap(left: Translation, right: Translation) -> float:
    """The largest difference between the log-probabilities of two outputs, token by token.

    Different texts count as equal only in a tie, which the last bit decides: the first two words that differ, or the
    complete texts, are equally likely. Otherwise the gap is infinite.
    """
    same = next((i for i, (a, b) in enumerate(zip(_ended(left), _ended(right), strict=False)) if a != b), None)
    pairs = list(zip(left.log_probs, right.log_probs, strict=False))
    if same is None:
        return furthest(abs(a - b) for a, b in pairs)
    before = furthest(abs(a - b) for a, b in pairs[:same])
    tie = min(abs(pairs[same][0] - pairs[same][1]), abs(left.score - right.score))
    return max(before, tie if tie <= ROUNDING else math.inf)


def _ended(output: Translation) -> tuple[int, ...]:
    return (*output.tokens, EOS)


def _worst(found: Sequence[Measured]) -> Measured:
    worst = max(found, key=lambda each: each.difference)
    notes = dict.fromkeys(each.note for each in found if each.note)
    tied = "" if worst.difference > ROUNDING or not notes else ", in ties"
    return Measured(worst.difference, "; ".join(notes) + tied)


@dataclass
class UncachedState:
    """The state of decoding without a cache: the texts only."""

    sources: list[Sequence[int]]  # of each sentence
    rows: list[list[int]]  # the tokens of each of its w hypotheses
    width: int = 1  # w

    light: ClassVar[bool] = False

    def select(self, rows: Tensor) -> UncachedState:
        lines = (rows[:, None] if rows.dim() == 1 else rows).tolist()
        sources = [self.sources[line[0] // self.width] for line in lines]
        return UncachedState(sources, [list(self.rows[row]) for line in lines for row in line], len(lines[0]))

    def join(self, other: UncachedState, free: Sequence[int] = ()) -> UncachedState:
        """Put the sentences of `other` at the indices `free`, and the rest after the last sentence."""
        indices = [*free, *range(len(self.sources), len(self.sources) + len(other.sources) - len(free))]
        for number, index in enumerate(indices):
            theirs = other.rows[number * self.width : (number + 1) * self.width]
            self.sources[index : index + 1] = [other.sources[number]]
            self.rows[index * self.width : (index + 1) * self.width] = theirs
        return self

    def release(self) -> None:
        """Nothing to give back."""


class UncachedStep:
    """A step without a cache: it reads the source and the complete output so far each time."""

    def __init__(self, model: Any):
        self.model, self.device = model, next(model.parameters()).device

    def begin(self, sources: Sequence[Sequence[int]]) -> UncachedState:
        return UncachedState(list(sources), [[] for _ in sources])

    def __call__(self, ids: Tensor, state: UncachedState) -> Step:
        for row, new in zip(state.rows, ids.tolist(), strict=True):
            row += [id_ for id_ in new if id_ != PAD]
        memory = []
        if self.model.reads_source:
            sources = [source for source in state.sources for _ in range(state.width)]
            memory = [self.model.encode(padded(sources, self.device))]
        x = self.model.decode(padded(state.rows, self.device), *memory)
        last = torch.tensor([len(row) - 1 for row in state.rows], device=self.device)
        log_probs_BV = self.model.log_probs(x[torch.arange(len(last), device=self.device), last])
        return Step(log_probs_BV, log_probs_BV.new_zeros(len(last)), state)
