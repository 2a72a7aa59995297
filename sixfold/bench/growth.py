"""Growth of time and memory with the length of a text: one row through one stack, without the output softmax.

The stack is the encoder, or the only stack. Each length is twice the previous one, so the base-2 logarithm of the ratio
of two times is the exponent with which time grows: 1 for linear cost, 2 if attention dominates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from sixfold.bench import memory
from sixfold.bench.options import BenchOptions, Tell
from sixfold.bench.peer_models import absence, x_stack
from sixfold.bench.race import NO_TIME, OURS, SEED, Contender, Ratio, race, ratio, told_rounds
from sixfold.bench.subject import BenchSubject, Skipped
from sixfold.core.ids import CONTROLS
from sixfold.models.model import Model

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
WAYS = ("forward", "forward and backward")
_PEER = "x-transformers"
_FOR_MEMORY = 0.4  # share of the time for measuring memory

CellKey = tuple[str, str, int]  # library, way, length


def measure(subject: BenchSubject, options: BenchOptions, seconds: float, tell: Tell) -> dict[str, Any]:
    """The section as JSON."""
    until = time.perf_counter() + seconds
    lengths, missing = _possible(subject.model)
    left_out = {peer: "this section compares with x-transformers only" for peer in options.peers if peer != _PEER}
    libraries = [OURS]
    if _PEER in options.peers:
        if reason := absence(_PEER):
            left_out[_PEER] = reason
        else:
            libraries.append(_PEER)
    cells = _memories(subject, options, libraries, lengths, seconds * _FOR_MEMORY, missing, tell)
    if not cells:
        raise Skipped("; ".join(missing))
    tell("length …")
    keys = _fitting(cells, options.rounds, until - time.perf_counter(), missing)
    times = _times(subject.model, keys, options.rounds, until)
    return {
        "stack": _stack(subject.model),
        "rounds": len(next(iter(times.values()))),
        "cells": [_cell(key, cells[key], times) for key in keys],
        "not_measured": missing,
        "left_out": left_out,
    }


def _stack(model: Model) -> str:
    return model.stacks[0]


def _possible(model: Model) -> tuple[list[int], list[str]]:
    """The lengths that the model can read, and a remark on the others."""
    most = model.limits.get("encoder" if model.reads_source else "only", math.inf)
    lengths = [length for length in LENGTHS if length <= most]
    if not lengths:
        raise Skipped(f"this model reads at most {most} tokens, but the shortest measured length is {LENGTHS[0]}")
    rest = [length for length in LENGTHS if length > most]
    return lengths, [f"{length:,}: this model reads at most {most:,} tokens" for length in rest]


def act(model: Model, library: str, way: str, longest: int) -> Callable[[int], None]:
    """The measured work: a row of random words goes forward through the stack and, depending on `way`, backward."""
    read = _reader(model, library, longest)
    words = model.sizes.vocabulary(_stack(model))
    chance = torch.Generator().manual_seed(SEED)

    def forward(length: int) -> Tensor:
        return read(torch.randint(len(CONTROLS), words, (1, length), generator=chance))

    def both(length: int) -> None:
        forward(length).square().mean().backward()
        for parameter in parameters:
            parameter.grad = None

    trained = way != WAYS[0]
    module: Any = read if isinstance(read, torch.nn.Module) else model
    parameters = list(module.parameters())

    def run(length: int) -> None:
        module.train(trained)
        if trained:
            both(length)
        else:
            with torch.inference_mode():
                forward(length)

    return run


def _reader(model: Any, library: str, longest: int) -> Callable[[Tensor], Tensor]:
    if library == _PEER:
        torch.manual_seed(SEED)
        side = "encoder" if model.reads_source else "only" if model.writes_text else "reader"
        return x_stack(model.sizes, side, longest, return_only_embed=True)
    if model.reads_source:
        return lambda ids: model.encode(ids).states[-1]
    return model.decode if model.writes_text else model.encode


def _memories(
    subject: BenchSubject,
    options: BenchOptions,
    libraries: Sequence[str],
    lengths: Sequence[int],
    seconds: float,
    missing: list[str],
    tell: Tell,
) -> dict[CellKey, dict[str, Any]]:
    """Peak memory and one time of each cell that fits; remarks on the others are added to `missing`."""
    cells: dict[CellKey, dict[str, Any]] = {}
    job = {"threads": options.threads, "imports": list(subject.imports)}
    until = time.perf_counter() + seconds
    for place, name in enumerate(libraries):
        for number, way in enumerate(WAYS):
            left = until - time.perf_counter()
            if cells and left <= 0:
                missing.append(f"{name}, {way}: {NO_TIME}")
                continue
            tell(f"length, memory: {name}, {way} …")
            share = max(0.0, left) / ((len(libraries) - place) * len(WAYS) - number)
            for found in memory.passes(str(subject.run.directory), lengths, share, library=name, way=way, **job):
                if "left_out" in found:
                    missing.append(f"{name}, {way}, {found['length']:,} and more: {found['left_out']}")
                else:
                    cells[name, way, found["length"]] = found
    return cells


def _fitting(cells: dict[CellKey, dict[str, Any]], rounds: int, seconds: float, missing: list[str]) -> list[CellKey]:
    """The cells of the shortest lengths that leave time for two rounds."""
    keys, cost = list[CellKey](), 0.0
    for length in sorted({length for _, _, length in cells}):
        those = [key for key in cells if key[2] == length]
        cost += sum(cells[key]["seconds"] for key in those)
        if keys and cost * min(rounds, 2) > seconds:
            missing.append(f"{length:,} and more: there is no time left; give more --seconds")
            break
        keys += those
    return keys


def _times(model: Model, keys: Sequence[CellKey], rounds: int, until: float) -> dict[str, list[float]]:
    """Seconds by cell and round; all lengths run in each round, so that ratios are taken within a round."""
    longest, mode = max(length for _, _, length in keys), model.training
    acts = {(library, way): act(model, library, way, longest) for library, way, _ in keys}

    def contender(key: CellKey) -> Contender:
        library, way, length = key
        run = acts[library, way]

        def step() -> float:
            run(length)
            return 0.0

        return Contender(_name(key), step)

    contenders = [contender(key) for key in keys]
    for run in acts.values():
        run(LENGTHS[0])  # to warm up
    noted: dict[str, list[float]] = {each.name: [] for each in contenders}
    try:
        return race(contenders, rounds, 1, noted, max(0.0, until - time.perf_counter()))
    finally:
        model.train(mode)


def _name(key: CellKey) -> str:
    return "/".join(map(str, key))


def _cell(key: CellKey, found: dict[str, Any], times: dict[str, list[float]]) -> dict[str, Any]:
    library, way, length = key
    mine = times[_name(key)]
    half, ours = (times.get(_name(other)) for other in ((library, way, length // 2), (OURS, way, length)))
    return {
        "who": library,
        "way": way,
        "length": length,
        "milliseconds": 1000 * median(mine),
        "microseconds_per_token": 1e6 * median(mine) / length,
        "growth": None if half is None else exponent(mine, half)._asdict(),
        "peak_bytes": found["bytes"],
        "ratio": None if ours is None else ratio(mine, ours)._asdict(),
        "seconds_by_round": mine,
    }


def exponent(whole: Sequence[float], half: Sequence[float]) -> Ratio:
    """The power of the length with which time grows, from a doubled length."""
    return Ratio(*(None if value is None else math.log2(value) for value in ratio(whole, half)))  # type: ignore[arg-type]


def tables(section: dict[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """The printed tables: headings and rows."""
    head = ["pass", "library", "tokens", "ms", "µs per token", "time grows as length to the power", "peak MiB"]
    rows = []
    for cell in sorted(section["cells"], key=lambda cell: (cell["way"], cell["who"], cell["length"])):
        growth, against = (None if cell[name] is None else str(Ratio(**cell[name])) for name in ("growth", "ratio"))
        rows.append([cell["way"], cell["who"], f"{cell['length']:,}", f"{cell['milliseconds']:,.1f}"])
        rows[-1] += [f"{cell['microseconds_per_token']:.2f}", growth or "", f"{cell['peak_bytes'] / 2**20:,.0f}"]
        rows[-1] += ["1" if cell["who"] == OURS else against or ""]
    return [([*head, "its time / sixfold's"], rows)]


def notes(section: dict[str, Any]) -> list[str]:
    lines = [f"one row through the {section['stack']}, to its last states; {told_rounds(section['rounds'])}"]
    lines.append("peak MiB: peak memory of a separate process, minus its memory with the model loaded")
    return lines + [f"not measured: {each}" for each in section["not_measured"]]
