"""Equalities of decoding: cached = uncached, alone = in a batch (also in int8), fused = explicit attention.

Letters: B rows, N tokens of all rows that are not padding, V words, D model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sixfold.config.schema import Decoding, change_decoding
from sixfold.core.ids import BOS, EOS, PAD
from sixfold.core.tap import Tap
from sixfold.decoding.cpu.int8 import quantised
from sixfold.decoding.equalities import Gap, Trial
from sixfold.decoding.front_of import front_of
from sixfold.decoding.job import Job
from sixfold.decoding.records import Line
from sixfold.decoding.step import StepFunction, padded
from sixfold.decoding.uncached import UncachedStep
from sixfold.models.model import Model, evaluating
from sixfold.transformer import Attention, CrossAttention
from sixfold.verify.contract.searching import gap_without_cache, gaps_in_company
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
    model, texts = subject.model, [sample.text for sample in subject.samples[:_WITHOUT_CACHE]]
    found = []
    with evaluating(model):
        for beam in _BEAMS:
            trial, step = _trial(subject, model, beam, texts)
            found.append(gap_without_cache(trial, step, UncachedStep(model)))
    return _measured(found)


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
    return _in_company(subject, subject.model)


@equality(
    "int8",
    "alone = in a batch, in int8",
    left="each sentence alone",
    right="all in one batch, and in another order",
    tolerance=ROUNDING_TO_8_BITS,
)
def int8(subject: VerifiedRun) -> Measured:
    """`batch` with linear maps in int8: a difference in the last bit of an activation can become a whole int8 step."""
    if next(subject.model.parameters()).device.type != "cpu":
        raise NotApplicable("int8 works on a CPU only")
    model = quantised(subject.model)
    return _states_in_a_batch(subject, model) if not model.writes_text else _in_company(subject, model)


def _in_company(subject: VerifiedRun, model: Model) -> Measured:
    """Compare each sample decoded alone with all in one batch, and with all in reverse order in small batches."""
    texts, found = [sample.text for sample in subject.samples], list[Gap]()
    with evaluating(model):
        for beam in _BEAMS:
            found += gaps_in_company(*_trial(subject, model, beam, texts))
    return _measured(found)


def _states_in_a_batch(subject: VerifiedRun, model: Model) -> Measured:
    """`_in_company` for a model that writes no text: its log-probabilities, or its states, of each token."""
    together = outputs_of(model, subject.samples)
    alone = torch.cat([outputs_of(model, [sample]) for sample in subject.samples])
    return Measured(_apart(alone, together), right="all in one batch")


@equality(
    "attention",
    "fused = explicit attention",
    left="by the fused kernel",
    right="step by step, with the weights",
    tolerance=ROUNDING,
)
def attention(subject: VerifiedRun) -> Measured:
    """Compare the log-probabilities of all words after each token; with a tap, attention is computed explicitly."""
    if not any(_can_be_fused(part) for part in subject.model.modules()):
        raise NotApplicable("no part of this model is the plain Transformer's attention with a fused form")
    tap = Tap()
    explicit = outputs_of(subject.model, subject.samples, tap)
    if not len(tap):
        raise NotApplicable("no part of this model has attention weights")
    return Measured(_apart(outputs_of(subject.model, subject.samples), explicit))


def _can_be_fused(part: Any) -> bool:
    """Whether it is an attention whose position does not need the weights."""
    return isinstance(part, CrossAttention) or (isinstance(part, Attention) and not part.position.fills("values"))


@torch.inference_mode()
def outputs_of(model: Any, samples: Sequence[SampleText], tap: Tap | None = None) -> Tensor:
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


def _need_text(subject: VerifiedRun) -> None:
    if not subject.model.writes_text:
        raise NotApplicable("an encoder_only model writes no text, and keeps no cache")


def _trial(subject: VerifiedRun, model: Any, beam: int, texts: Sequence[str]) -> tuple[Trial, StepFunction]:
    """The jobs that `translate` or `generate` makes of these texts, and the step that decodes them."""
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
    decoding: Decoding = change_decoding(subject.config.decoding, plain)
    session = front_of(model, subject.tokenizers, decoding).session()
    jobs = session.jobs([Line(text) for text in texts])
    for job in jobs:
        if isinstance(job, ValueError):
            raise job
    made = [job for job in jobs if isinstance(job, Job)]
    return Trial(made, session.method, session.never, tie=ROUNDING), session.step


def _measured(gaps: Sequence[Gap]) -> Measured:
    """The largest of several gaps, with a note on texts that differ."""
    worst = max(gap.difference for gap in gaps)
    notes = dict.fromkeys(f"{gap.different} of {gap.outputs} texts differ" for gap in gaps if gap.different)
    tied = ", in ties" if notes and worst <= ROUNDING else ""
    return Measured(worst, "; ".join(notes) + tied)
