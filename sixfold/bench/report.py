"""All sections of `sixfold bench`, and what is told of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from sixfold.bench import decoding, growth, training
from sixfold.bench.machine import machine, warning
from sixfold.bench.options import SHARES, BenchOptions, Tell
from sixfold.bench.subject import BenchSubject, Skipped

FORMAT = "sixfold-bench-1"
_OVERRUN = 1.25  # times the seconds that were asked for, from which on it is said
Table = tuple[list[str], list[list[str]]]  # heads, rows


class BenchSection(NamedTuple):
    """What one section does: measure, make tables of what was found, and say what goes with them."""

    measure: Callable[[BenchSubject, BenchOptions, float, Tell], dict[str, Any]]
    tables: Callable[[dict[str, Any]], list[Table]]
    notes: Callable[[dict[str, Any]], list[str]]


SECTIONS = {
    "training": BenchSection(training.measure, training.tables, training.notes),
    "decoding": BenchSection(decoding.measure, decoding.tables, decoding.notes),
    "length": BenchSection(growth.measure, growth.tables, growth.notes),
}


def bench(subject: BenchSubject, wishes: BenchOptions, tell: Tell) -> dict[str, Any]:
    """Everything that was measured, as JSON. What a section can't do with this model is said in its place."""
    busy = warning(os.getloadavg()[0])
    before = torch.get_num_threads()
    torch.set_num_threads(wishes.threads)
    try:
        report: dict[str, Any] = {
            "format": FORMAT,
            "subject": subject.json(),
            "machine": machine("sixfold"),
            "wishes": wishes.json(),
            "warnings": [busy] if busy else [],
            "sections": {},
        }
        began, names = time.perf_counter(), [each for each in SECTIONS if each in wishes.only]
        for number, name in enumerate(names):
            left = max(0.0, wishes.seconds - (time.perf_counter() - began))
            share = left * SHARES[name] / sum(SHARES[each] for each in names[number:])
            report["sections"][name] = _measured(name, subject, wishes, share, tell)
        report["warnings"] += _overrun(time.perf_counter() - began, wishes.seconds)
    finally:
        torch.set_num_threads(before)
    return report


def _measured(name: str, subject: BenchSubject, wishes: BenchOptions, seconds: float, tell: Tell) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        found = SECTIONS[name].measure(subject, wishes, seconds, tell)
    except Skipped as reason:
        tell(f"{name}: left out")
        return {"skipped": str(reason)}
    took = time.perf_counter() - began
    tell(f"{name}: done in {took:.0f} s")
    return {**found, "seconds": took}


def _overrun(took: float, asked: float) -> list[str]:
    """What is said where the least that there is to measure takes longer than was asked for."""
    if took <= _OVERRUN * asked:
        return []
    fewer = "give more --seconds, or fewer of --only, --beams, --ways, --precisions and --peers"
    return [f"it took {took:.0f} s instead of {asked:g}: one round of each row takes that long here; {fewer}"]


def told(name: str, section: dict[str, Any]) -> tuple[Sequence[Table], list[str]]:
    """The tables of a section, and what is said below them."""
    if "skipped" in section:
        return [], [f"left out: {section['skipped']}"]
    left_out = [f"{who} is left out: {why}" for who, why in section["left_out"].items()]
    return SECTIONS[name].tables(section), [*SECTIONS[name].notes(section), *left_out]
