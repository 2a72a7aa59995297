"""Speed of training: target tokens per second, and the share of the processor's peak in matrix products.

In each round, every contender trains on the same batches once, and two large matrices are multiplied. The speed of that
product is the peak. The share of the peak is computed within a round, because clock rates change between rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from sixfold.bench.options import BenchOptions, Tell
from sixfold.bench.peer_models import absence
from sixfold.bench.race import NO_TIME, OURS, Contender, Ratio, race, ratio, told_rounds
from sixfold.bench.subject import BenchSubject
from sixfold.bench.training_contenders import MicroBatches, TrainingContender, ours, peer, tokens
from sixfold.core.ids import PAD
from sixfold.models.count import count
from sixfold.models.model import Model
from sixfold.runs import model_files
from sixfold.tasks.task import task_of
from sixfold.training.make_trainer import make_batches

PEAK = "matrix product"
_SIDE = 2048  # rows and columns of the matrices whose product is the peak
_REPEATS = 3  # products of a round; the fastest counts
_ROUNDS = 5  # the number of batches is chosen so that this many rounds fit into the time
_PACE = 3  # a trial of another contender is assumed to take as long as this many of our steps
_PASSES = 3  # a step has this many times the matrix products of a forward pass: one forward, two backward


def measure(subject: BenchSubject, options: BenchOptions, seconds: float, tell: Tell) -> dict[str, Any]:
    """The section as JSON."""
    until = time.perf_counter() + seconds
    tell("training …")
    steps = first_steps(subject, options.steps)
    learners, left_out, cost = _learners(subject, options.peers, steps[:1], until)
    steps = steps[: _fitting(cost, len(steps), options.rounds, until)]
    if len(steps) > 1:
        names = [learner.contender.name for learner in learners[1:]]
        learners = [ours(subject, steps), *(peer(name, subject, steps) for name in names)]
        for learner in learners:
            learner.contender.step()  # to warm up
    noted: dict[str, list[float]] = {name: [] for name in (PEAK, *(each.contender.name for each in learners))}
    contenders = [*(learner.contender for learner in learners), Contender(PEAK, product(_SIDE))]
    times = race(contenders, options.rounds, 1, noted, max(0.0, until - time.perf_counter()))
    work = flops(model_files.skeleton(subject.run.directory), steps)
    return {
        "text": subject.text,
        "deterministic": subject.config.training.deterministic,
        **_described(subject, steps),
        "rounds": len(times[OURS]),
        "flop_per_step": work / len(steps),
        "peak_flop_per_second": median(noted[PEAK]),
        "contenders": {learner.contender.name: _result(learner, times, noted, steps, work) for learner in learners},
        "left_out": left_out,
    }


def first_steps(subject: BenchSubject, number: int) -> list[MicroBatches]:
    """The first batches of the run's training."""
    training = subject.config.training
    batches = make_batches(task_of(subject.config), subject.prepared, subject.config, training.accumulate)
    return [batches.next() for _ in range(number)]


def _learners(
    subject: BenchSubject, peers: Sequence[str], steps: Sequence[MicroBatches], until: float
) -> tuple[list[TrainingContender], dict[str, str], float]:
    """The contenders, the reasons why others are left out, and the seconds of one step of all contenders together."""
    found, left_out = [ours(subject, steps)], {}
    cost = own = _pace(found[0])
    for name in peers:
        late = cost + _PACE * own > until - time.perf_counter()
        if reason := absence(name) or (NO_TIME if late else None):
            left_out[name] = reason
            continue
        try:
            found.append(peer(name, subject, steps))
            cost += _pace(found[-1])
        except ValueError as error:
            left_out[name] = str(error)
    return found, left_out, cost


def _pace(learner: TrainingContender) -> float:
    """Seconds of a step, after a first one to warm up."""
    learner.contender.step()
    begin = time.perf_counter()
    learner.contender.step()
    return time.perf_counter() - begin


def _fitting(cost: float, most: int, rounds: int, until: float) -> int:
    """The number of batches, at most `most`, that leaves time for some rounds."""
    left = max(0.0, until - time.perf_counter())
    return max(1, min(most, int(left / (cost * (min(rounds, _ROUNDS) + 1)))))


def product(side: int) -> Callable[[], float]:
    """A function that multiplies two square matrices several times, and returns its largest speed in operations/s."""
    left, right, out = (torch.randn(side, side) for _ in range(3))
    operations = 2 * side**3

    def step() -> float:
        fastest = float("inf")
        for _ in range(_REPEATS):
            begin = time.perf_counter()
            torch.mm(left, right, out=out)
            fastest = min(fastest, time.perf_counter() - begin)
        return operations / fastest

    return step


def flops(model: Model, steps: Sequence[MicroBatches]) -> int:
    """Floating point operations of all products in these steps, padding included: forward, and twice that backward."""
    known: dict[tuple[int, int], int] = {}
    total = 0
    for batch in (batch for step in steps for batch in step):
        lengths = _length(batch.source), _length(batch.targets)
        if lengths not in known:
            known[lengths] = count(model, *lengths).operations
        total += known[lengths] * len(batch.targets)
    return 2 * _PASSES * total  # a multiply-accumulate is two operations


def _length(ids: Any) -> int:
    return 1 if ids is None or ids.dim() < 2 else int(ids.shape[1])


def _described(subject: BenchSubject, steps: Sequence[MicroBatches]) -> dict[str, Any]:
    read = [ids for step in steps for batch in step for ids in (batch.source, batch.inputs) if ids is not None]
    return {
        "steps": len(steps),
        "micro_batches": sum(map(len, steps)),
        "target_tokens": tokens(steps),
        "batch_tokens": subject.config.training.batch_tokens,
        "padding": sum(int((ids == PAD).sum()) for ids in read) / sum(ids.numel() for ids in read),
    }


def _result(
    learner: TrainingContender,
    times: dict[str, list[float]],
    noted: dict[str, list[float]],
    steps: Sequence[MicroBatches],
    work: int,
) -> dict[str, Any]:
    name = learner.contender.name
    seconds = median(times[name])
    return {
        "same": learner.same,
        "parameters": learner.contender.parameters,
        "milliseconds_per_step": 1000 * seconds / len(steps),
        "target_tokens_per_second": tokens(steps) / seconds,
        "flop_per_second": work / seconds,
        "share_of_peak": share(work, times[name], noted[PEAK])._asdict(),
        "ratio": ratio(times[name], times[OURS])._asdict(),
        "first_loss": noted[name][0],
        "last_loss": noted[name][-1],
        "seconds_by_round": times[name],
    }


def share(work: float, seconds: Sequence[float], peaks: Sequence[float]) -> Ratio:
    """The share of the peak, round by round: the model's operations per second / the matrix product's."""
    return ratio([work / each for each in seconds], peaks)


def tables(section: dict[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """The printed tables: headings and rows."""
    head = ["library", "parameters", "ms per step", "target tokens/s", "TFLOP/s", "share of the peak"]
    rows = []
    for name, found in section["contenders"].items():
        rows.append([name if name == OURS else f"{name} (same {found['same']})", f"{found['parameters']:,}"])
        rows[-1] += [f"{found['milliseconds_per_step']:.1f}", f"{found['target_tokens_per_second']:,.0f}"]
        rows[-1] += [f"{found['flop_per_second'] / 1e12:.3f}", str(Ratio(**found["share_of_peak"]))]
        rows[-1] += ["1" if name == OURS else str(Ratio(**found["ratio"]))]
    return [([*head, "its time / sixfold's"], rows)]


def notes(section: dict[str, Any]) -> list[str]:
    batches = f"optimiser steps: {section['steps']} of {section['batch_tokens']:,} tokens ({section['text']})"
    counts = f"{section['target_tokens']:,} target tokens, {section['padding']:.1%} padding"
    counts += f"; {told_rounds(section['rounds'])}"
    peak = f"{section['peak_flop_per_second'] / 1e12:.3f} TFLOP/s, float32 products of {_SIDE} × {_SIDE}"
    mode = "deterministic" if section["deterministic"] else "not deterministic"
    return [
        f"{batches}: {counts}",
        f"peak: {peak}, measured in every round; the products of the model include those on padding and on masked keys",
        f"sixfold's step is that of `sixfold train`, {mode} as configured; the others are not deterministic",
        "ratios compare times; above 1, sixfold is faster",
    ]
