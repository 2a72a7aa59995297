"""Runs all sections of `sixfold bench`, and turns their results into tables and notes."""

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
_OVERRUN = 1.25  # ratio of the time taken to --seconds above which there is a warning
Table = tuple[list[str], list[list[str]]]  # heads, rows


class BenchSection(NamedTuple):
    """The functions of one section: measure, make tables of the results, make notes on them."""

    measure: Callable[[BenchSubject, BenchOptions, float, Tell], dict[str, Any]]
    tables: Callable[[dict[str, Any]], list[Table]]
    notes: Callable[[dict[str, Any]], list[str]]


SECTIONS = {
    "training": BenchSection(training.measure, training.tables, training.notes),
    "decoding": BenchSection(decoding.measure, decoding.tables, decoding.notes),
    "length": BenchSection(growth.measure, growth.tables, growth.notes),
}


def bench(subject: BenchSubject, options: BenchOptions, tell: Tell) -> dict[str, Any]:
    """All measurements as JSON. For a section that can't be measured with this model, the reason."""
    busy = warning(os.getloadavg()[0])
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        report: dict[str, Any] = {
            "format": FORMAT,
            "subject": subject.json(),
            "machine": machine("sixfold"),
            "wishes": options.json(),
            "warnings": [busy] if busy else [],
            "sections": {},
        }
        began, names = time.perf_counter(), [each for each in SECTIONS if each in options.only]
        for number, name in enumerate(names):
            left = max(0.0, options.seconds - (time.perf_counter() - began))
            share = left * SHARES[name] / sum(SHARES[each] for each in names[number:])
            report["sections"][name] = _measured(name, subject, options, share, tell)
        report["warnings"] += _overrun(time.perf_counter() - began, options.seconds)
    finally:
        torch.set_num_threads(before)
    return report


def _measured(name: str, subject: BenchSubject, options: BenchOptions, seconds: float, tell: Tell) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        found = SECTIONS[name].measure(subject, options, seconds, tell)
    except Skipped as reason:
        tell(f"{name}: left out")
        return {"skipped": str(reason)}
    took = time.perf_counter() - began
    tell(f"{name}: done in {took:.0f} s")
    return {**found, "seconds": took}


def _overrun(took: float, asked: float) -> list[str]:
    """A warning if the smallest measurement takes longer than --seconds."""
    if took <= _OVERRUN * asked:
        return []
    fewer = "give more --seconds, or fewer of --only, --beams, --ways, --precisions and --peers"
    return [f"this took {took:.0f} s instead of {asked:g} s, because one round of each row takes that long; {fewer}"]


def told(name: str, section: dict[str, Any]) -> tuple[Sequence[Table], list[str]]:
    """The tables of a section, and the notes below them."""
    if "skipped" in section:
        return [], [f"left out: {section['skipped']}"]
    left_out = [f"{who} is left out: {why}" for who, why in section["left_out"].items()]
    return SECTIONS[name].tables(section), [*SECTIONS[name].notes(section), *left_out]
