"""Speed of decoding, from text to text: all contenders have the same weights and the same search.

Sentences end where the model ends them, so the time per written token is compared, with the share of equal lines in the
next column. An untrained model never ends a sentence: there all outputs have the length limit.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from sixfold.bench.decoding_contenders import ALONE, BATCH, Contenders, DecodingContender, Search, TimedTranslation
from sixfold.bench.options import BenchOptions, Tell
from sixfold.bench.race import FEWEST, NO_TIME, OURS, Contender, Ratio, race, ratio, told_rounds
from sixfold.bench.subject import BenchSubject, Skipped, thinned
from sixfold.decoding.cpu.int8 import quantised
from sixfold.decoding.cpu.step import make_step, unknown_part
from sixfold.decoding.owned_models import frozen

_PILOTS = (8, 64)  # sentences of the trials that estimate how many fit into the time
_GLANCE = 0.03  # share of the time for each trial
_FEWEST = 8  # sentences
_ROUNDS = 4  # rounds that should fit into the time
_RACE = 0.5  # share of the time for the race itself, after the choice of batch sizes
_START = 4.0  # seconds that worker processes take to start, until measured
_UNTRAINED = 32  # length limit of an untrained model's outputs


def measure(subject: BenchSubject, options: BenchOptions, seconds: float, tell: Tell) -> dict[str, Any]:
    """The section as JSON."""
    if not subject.model.reads_source:
        raise Skipped(f"only models of kind encoder_decoder are measured, and this one is {subject.model.kind}")
    lines, origin = subject.held_out(options.sentences, options.file, options.texts)
    limit = _limit(subject)
    ways = [{"batch": BATCH, "alone": ALONE}[way] for way in options.ways]
    searches = [Search(beam, way, limit) for way in ways for beam in options.beams]
    cases, until = [], time.perf_counter() + seconds
    start, late = _START, dict[str, list[str]]()
    with (
        frozen(subject.model),  # as `sixfold.load` does, so that a step is kept between two calls
        tempfile.TemporaryDirectory(prefix="sixfold-bench-") as folder,
        Contenders(subject, options.precisions, options.threads, Path(folder)) as contenders,
    ):
        for number, search in enumerate(searches):
            mine = max(0.0, until - time.perf_counter()) / (len(searches) - number)
            tell(f"decoding, {search} …")
            case = _Case(search, lines, mine, start)
            cases.append(case.race(contenders.writers(search, options.peers), options.rounds))
            start = case.start
            contenders.rest()
            for name in case.late:
                late.setdefault(name, []).append(str(search))
            tell(f"decoding, {search}: {cases[-1]['sentences']} sentences, {told_rounds(cases[-1]['rounds'])}")
        left_out = {**contenders.left_out, **{name: f"{NO_TIME} ({'; '.join(late[name])})" for name in late}}
    return {"text": origin, "limit": limit, "step": steps(subject, options), "cases": cases, "left_out": left_out}


def _limit(subject: BenchSubject) -> int:
    if not subject.trained:
        return _UNTRAINED
    most = subject.model.limits.get("decoder")
    return min([subject.config.decoding.max_length, *([] if most is None else [most - 1])])


def steps(subject: BenchSubject, options: BenchOptions) -> dict[str, dict[str, str]]:
    """The decoding step that each precision uses, and why."""
    found = {}
    for precision in options.precisions:
        model = quantised(subject.model) if precision == "int8" else subject.model
        part = unknown_part(model)
        why = "it supports all parts of the decoder" if part is None else f"FusedStep does not support {part}"
        found[precision] = {"step": type(make_step(model)).__name__, "why": why}
    return found


class _Racer:
    """A contender with its fastest setting, and its last outputs."""

    def __init__(self, writer: DecodingContender):
        self.writer, self.choice = writer, writer.choices[-1]
        self.outputs: list[TimedTranslation] = []

    def write(self, lines: list[str]) -> float:
        self.outputs = self.writer.write(lines, self.choice)
        return float(sum(each.tokens for each in self.outputs))

    def seconds(self, lines: list[str]) -> float:
        begin = time.perf_counter()
        self.write(lines)
        return time.perf_counter() - begin

    def choose(self, lines: list[str], until: float, start: float) -> None:
        """Choose the fastest setting, as far as there is time to try; this also warms up.

        Each trial may take `start` seconds longer, to start processes.
        """
        times: dict[int, float] = {}
        for choice in reversed(self.writer.choices):
            if times and time.perf_counter() + min(times.values()) + start > until:
                break
            self.choice = choice
            times[choice] = self.seconds(lines)
        self.choice = min(times, key=lambda choice: times[choice])


class _Case:
    """One search: estimates how many sentences fit, lets each contender choose its setting, and races them.

    sixfold without worker processes always takes part. `late` lists the contenders that are left out for lack of time.
    """

    def __init__(self, search: Search, lines: Sequence[str], seconds: float, start: float):
        self.search, self.lines = search, lines
        self.until = time.perf_counter() + seconds
        self.start = start  # seconds that worker processes take to start
        self.late: list[str] = []

    @property
    def left(self) -> float:
        return self.until - time.perf_counter()

    def race(self, writers: Sequence[DecodingContender], rounds: int) -> dict[str, Any]:
        racers, number = self._fitting([_Racer(writer) for writer in writers])
        chosen = thinned(self.lines, number)
        trials = time.perf_counter() + self.left * (1 - _RACE)
        for racer in racers:
            racer.choose(chosen, trials, self.start if racer.writer.processes else 0.0)
        written: dict[str, list[float]] = {racer.writer.name: [] for racer in racers}
        contenders = [Contender(racer.writer.name, lambda racer=racer: racer.write(chosen)) for racer in racers]  # type: ignore[misc]
        times = race(contenders, rounds, 1, written, max(0.0, self.left))
        return {
            "search": "greedy" if self.search.beam == 1 else f"beam {self.search.beam}",
            "way": self.search.way,
            "sentences": len(chosen),
            "rounds": len(next(iter(times.values()))),
            "contenders": _results(racers, times, written, len(chosen)),
        }

    def _fitting(self, racers: Sequence[_Racer]) -> tuple[list[_Racer], int]:
        """The contenders that take part, and the number of sentences that leaves time for some rounds.

        A few sentences are decoded to estimate it, which also warms up. Several worker processes are assumed to need as
        long as one process.
        """
        glance, found, cost = _GLANCE * self.left, list[_Racer](), 0.0
        paces: dict[str, float] = {}  # seconds per sentence of sixfold, by precision
        for racer in racers:
            writer = racer.writer
            own = writer.name.startswith(OURS) and not writer.processes
            begins = self.start * len(writer.choices) if writer.processes else 0.0
            if not own and cost * _FEWEST + begins > self.left:
                self.late.append(writer.name)
                continue
            if writer.processes:
                self.start = max(self.start, racer.seconds(thinned(self.lines, 2)))
                pace = paces[writer.precision]
            else:
                pace = _pace(racer, self.search, self.lines, glance)
            if own:
                paces[writer.precision] = pace
            cost += (_ROUNDS + len(writer.choices)) * pace
            found.append(racer)
        begins = sum(self.start * (len(racer.writer.choices) - 1) for racer in found if racer.writer.processes)
        return found, max(_FEWEST, min(len(self.lines), int((self.left - begins) / cost)))


def _pace(racer: _Racer, search: Search, lines: Sequence[str], seconds: float) -> float:
    """Seconds per sentence: in a small batch or, if there is time, in a larger one, where sentences are faster."""
    racer.write(thinned(lines, 2))
    found = 0.0
    for number in _PILOTS if search.way == BATCH else _PILOTS[:1]:
        if not found or found * number <= seconds:
            pilot = thinned(lines, number)
            found = racer.seconds(pilot) / len(pilot)
    return found


def _results(
    racers: Sequence[_Racer], times: dict[str, list[float]], written: dict[str, list[float]], sentences: int
) -> dict[str, Any]:
    per_token = {name: [t / n for t, n in zip(times[name], written[name], strict=True)] for name in times}
    first = racers[0].outputs
    results = {}
    for racer in racers:
        name, seconds = racer.writer.name, median(times[racer.writer.name])
        against = _fastest_of_ours(racers, racer.writer.precision, per_token)
        results[name] = {
            "precision": racer.writer.precision,
            "chosen": {racer.writer.chosen: racer.choice} if racer.writer.chosen else {},
            "tokens": written[name][-1],
            "tokens_per_second": 1 / median(per_token[name]),
            "sentences_per_second": sentences / seconds,
            "milliseconds_per_sentence": 1000 * seconds / sentences,
            "against": against,
            "ratio": ratio(per_token[name], per_token[against])._asdict(),
            "same_lines": sum(a.text == b.text for a, b in zip(racer.outputs, first, strict=True)) / len(first),
            "seconds_by_round": times[name],
        }
    return results


def _fastest_of_ours(racers: Sequence[_Racer], precision: str, per_token: dict[str, list[float]]) -> str:
    ours = [r.writer.name for r in racers if r.writer.name.startswith(OURS) and r.writer.precision == precision]
    return min(ours, key=lambda name: median(per_token[name]))


def tables(section: dict[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """The printed tables: headings and rows."""
    head = ["search", "way", "library", "sentences", "tokens/s", "sentences/s", "ms per sentence"]
    head += ["its time per token / sixfold's", "same lines"]
    rows = []
    for case in section["cases"]:
        for name, found in case["contenders"].items():
            figures = [found["tokens_per_second"], found["sentences_per_second"]]
            against = "1" if name == found["against"] else str(Ratio(**found["ratio"]))
            rows.append([case["search"], case["way"], name, f"{case['sentences']:,}"])
            rows[-1] += [f"{figures[0]:,.0f}", f"{figures[1]:,.1f}", f"{found['milliseconds_per_sentence']:.2f}"]
            rows[-1] += [against, f"{found['same_lines']:.1%}"]
    return [(head, rows)]


def notes(section: dict[str, Any]) -> list[str]:
    lines = [f"{section['text']}; outputs of at most {section['limit']} tokens, timed from text to text"]
    for precision, found in section["step"].items():
        lines.append(f"{precision}: {found['step']}, because {found['why']}")
    fewest = min(case["rounds"] for case in section["cases"])
    if fewest < 5:
        little = "" if fewest < FEWEST else ", so their intervals are unreliable"
        lines.append(f"some numbers are from {told_rounds(fewest)}{little}; for more rounds give more --seconds")
    lines.append("ratios compare with the fastest row of sixfold in the same precision; above 1, sixfold is faster")
    return lines
