"""Checks that a search finds the same texts with a cache and without, and for a sentence alone and in company.

`sixfold verify` measures the same gaps on a user's own model, and the tests on every architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from sixfold.core.ids import BOS, EOS
from sixfold.decoding.equalities import Gap, Trial, compare
from sixfold.decoding.job import Job, Method
from sixfold.decoding.rules.rule import NoRepeatedNgram
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.step import ModelStep, StepFunction
from sixfold.decoding.uncached import UncachedStep
from sixfold.verify.contract.check import WITHIN, Broken, check
from sixfold.verify.contract.subject import Subject, random_rows, seeded

METHODS: dict[str, Method] = {"greedy": Greedy(), "beam": Beam(3, n_best=2)}
_FEW = 4  # sentences of the longest length that fit into a small batch


@torch.inference_mode()
def gap_without_cache(trial: Trial, step: StepFunction, uncached: StepFunction, batch_tokens: int = 10**6) -> Gap:
    """The gap between a step with a cache, and one that reads the complete text every time."""
    return compare(trial.decode(step, batch_tokens), trial.decode(uncached, batch_tokens), trial.tie)


@torch.inference_mode()
def gaps_in_company(trial: Trial, step: StepFunction, alone: Sequence[int] | None = None) -> tuple[Gap, Gap]:
    """The gaps between all jobs in one batch and each alone, and all in reverse order in small batches.

    In small batches jobs join a running batch, and leave it. `alone` are the indices of the jobs that are decoded
    alone, by default all.
    """
    some = range(len(trial.jobs)) if alone is None else alone
    single = [trial._replace(jobs=[trial.jobs[index]]).decode(step)[0] for index in some]
    together, backwards = trial.decode(step), trial._replace(jobs=trial.jobs[::-1])
    budget = _FEW * trial.method.width * max(job.tokens for job in trial.jobs)
    joined = backwards.decode(step, budget)[::-1]
    in_one = [together[index] for index in some]
    return compare(single, in_one, trial.tie), compare(joined, together, trial.tie)


@check(
    "the cache of a search selects, repeats and drops rows at every step: keep what is known of earlier tokens in "
    "call.grow, call.carry or call.keep",
    needs=("writes_text",),
    method=tuple(METHODS),
)
def search_without_cache(subject: Subject, method: str) -> None:
    """A search finds the same texts, with the same scores, with a cache and without."""
    model = subject.model
    gap = gap_without_cache(_trial(model, METHODS[method], 4), ModelStep(model), UncachedStep(model))
    _need_none(gap, "with a cache and without")


@check(
    "rows join and leave the batch of a search at every step: a part reads no other row, and what it knows of a row "
    "it keeps in call.grow, call.carry or call.keep",
    needs=("writes_text",),
    method=tuple(METHODS),
)
def search_in_company(subject: Subject, method: str) -> None:
    """A search finds the same texts, with the same scores, for a sentence alone and beside others that come and go."""
    alone, joining = gaps_in_company(_trial(subject.model, METHODS[method], 8), ModelStep(subject.model))
    _need_none(alone, "for each sentence alone and for all in one batch")
    _need_none(joining, "in one batch and in small batches that sentences join and leave")


def _trial(model: Any, method: Method, number: int) -> Trial:
    """Sentences of different lengths and limits. Without the rule, a fresh model would repeat one word for ever."""
    chance, generator = Random(1), seeded(11)
    jobs = []
    for row in random_rows([chance.randrange(1, 6) for _ in range(number)], generator):
        ids = row.tolist()
        read: dict[str, Any] = {"source": [*ids, EOS]} if model.reads_source else {"prompt": [BOS, *ids]}
        jobs.append(Job(**read, limit=chance.randrange(1, 6), rules=[NoRepeatedNgram(1)]))
    return Trial(jobs, method)


def _need_none(gap: Gap, where: str) -> None:
    """Raise `Broken` unless all texts are the same, and all log-probabilities."""
    if gap.different:
        raise Broken(f"{gap.different} of {gap.outputs} texts differ {where}")
    if not gap.difference <= WITHIN:
        raise Broken(f"log-probabilities of words differ {where} (difference {gap.difference:.2g})")
