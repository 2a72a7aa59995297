"""How long a training step takes: sixfold's vanilla Transformer against others that train the same model.

    python benchmarks/training_step.py --out results.json --markdown results.md

README.md says what is measured and how; contenders.py, in what the contenders differ.
"""

import argparse
import gc
import json
import math
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from contenders import BUILDERS, CASES, LENGTH, ROWS, SEED, WORDS, Case, Contender, build_all

OURS = "sixfold"
GOAL = 0.97  # what the lower end of the interval against the fastest must reach
WARM_UP = 2  # steps
RESAMPLES = 10_000
TOLERANCE = 0.03  # of the parameter counts
STEPS = {"d128": 3, "d256": 3, "d512": 1}  # of which a timing is the median


class Ratio(NamedTuple):
    """A contender's time / sixfold's: above 1, sixfold is faster. Over rounds."""

    median: float
    low: float  # the interval that holds 95 % of the medians of resampled rounds
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    report: dict[str, Any] = {"machine": machine(), "method": method(options), "cases": []}
    print("\n".join(f"{key}: {value}" for key, value in report["machine"].items()))
    for name in options.cases:
        for dropout in options.dropout:
            print(f"\n{name}, dropout {dropout:g}", flush=True)
            report["cases"].append(run(name, CASES[name]._replace(dropout=dropout), options))
            gc.collect()
            if options.out:  # after each case: a long run that is stopped leaves what it has
                options.out.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    table = f"{step_table(report['cases'])}\n\n{verdict_table(report['cases'])}\n"
    print(f"\n{table}")
    if options.markdown:
        options.markdown.write_text(table, encoding="utf-8")


# What is measured ---------------------------------------------------------------------------------------


def run(name: str, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """One case: build everybody, let them race, and say what came out."""
    contenders = build_all(options.contenders, case)
    losses = {c.name: [c.step() for _ in range(WARM_UP)] for c in contenders}
    steps = options.steps or STEPS[name]
    times = race(contenders, options.rounds, steps, losses)
    for contender, values in losses.items():
        if not all(map(math.isfinite, values)):
            raise SystemExit(f"{contender}: the loss is not finite: {values}")
    results = {c.name: result(c, times, losses[c.name]) for c in contenders}
    largest = max(abs(r["parameters"] / results[OURS]["parameters"] - 1) for r in results.values())
    print(f"parameters: at most {largest:.2%} away from {OURS}'s" + (", too far!" if largest > TOLERANCE else ""))
    print(f"first losses (ln V = {math.log(WORDS):.2f}):", *(f"{k} {v[0]:.2f}" for k, v in losses.items()))
    others = [n for n in results if n != OURS]
    fastest = min(others, key=lambda n: results[n]["milliseconds"], default=None)
    sizes = {**case._asdict(), "words": WORDS, "rows": ROWS, "source_length": LENGTH, "target_length": LENGTH}
    return {
        "case": name,
        "sizes": sizes,
        "steps_per_timing": steps,
        "fastest": fastest,
        "holds": None if fastest is None else bool(results[fastest]["ratio"]["low"] >= GOAL),
        "contenders": results,
    }


def race(
    contenders: Sequence[Contender], rounds: int, steps: int, losses: dict[str, list[float]]
) -> dict[str, list[float]]:
    """Seconds for a step, by contender and round.

    Who begins changes every round and the direction too, so that nobody always runs after the same one.
    """
    times: dict[str, list[float]] = {c.name: [] for c in contenders}
    gc.disable()
    for r in range(rounds):
        start = r % len(contenders)
        order = [*contenders[start:], *contenders[:start]]
        for contender in order if r % 2 == 0 else reversed(order):
            seconds = []
            for _ in range(steps):
                begin = time.perf_counter()
                loss = contender.step()
                seconds.append(time.perf_counter() - begin)
                losses[contender.name].append(loss)
            times[contender.name].append(statistics.median(seconds))
        gc.collect()
    gc.enable()
    return times


def result(contender: Contender, times: dict[str, list[float]], losses: list[float]) -> dict[str, Any]:
    """What is reported of one contender in one case."""
    seconds = statistics.median(times[contender.name])
    return {
        "parameters": contender.parameters,
        "milliseconds": 1000 * seconds,
        "target_tokens_per_second": ROWS * LENGTH / seconds,
        "ratio": ratio(times[contender.name], times[OURS])._asdict(),
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "seconds_by_round": times[contender.name],
    }


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> Ratio:
    """The median over rounds, and its interval by bootstrap over rounds."""
    ratios = np.asarray(theirs) / np.asarray(ours)
    picks = np.random.default_rng(SEED).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[picks], axis=1), [2.5, 97.5])
    return Ratio(float(np.median(ratios)), float(low), float(high))


# How it is told -----------------------------------------------------------------------------------------


def step_table(cases: Sequence[dict[str, Any]]) -> str:
    head = ["case", "dropout", "contender", "parameters", "ms per step", "target tokens/s", "their time / sixfold's"]
    rows = []
    for case in cases:
        for name, r in case["contenders"].items():
            rows.append(
                [
                    case["case"],
                    f"{case['sizes']['dropout']:g}",
                    name,
                    f"{r['parameters']:,}",
                    f"{r['milliseconds']:.1f}",
                    f"{r['target_tokens_per_second']:,.0f}",
                    "1" if name == OURS else str(Ratio(**r["ratio"])),
                ]
            )
    return markdown(head, rows)


def verdict_table(cases: Sequence[dict[str, Any]]) -> str:
    head = ["case", "dropout", "fastest of the others", "its time / sixfold's", f"at least {GOAL}"]
    rows = []
    for case in cases:
        if case["fastest"] is not None:
            against = Ratio(**case["contenders"][case["fastest"]]["ratio"])
            verdict = "yes" if case["holds"] else "no"
            rows.append([case["case"], f"{case['sizes']['dropout']:g}", case["fastest"], str(against), verdict])
    return markdown(head, rows)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded so that it can be read as it is."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * w for w in widths], *rows]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines)


# Where and how it was run -------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "allocator": allocator(),
        "load at the start": [round(v, 2) for v in os.getloadavg()],
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "sixfold", "transformers", "x-transformers")},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
    }


def method(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "rounds": options.rounds,
        "warm_up_steps": WARM_UP,
        "resamples": RESAMPLES,
        "seed": SEED,
        "goal": GOAL,
        "dtype": "float32",
    }


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def allocator() -> str:
    """What the environment says of it: whether large blocks are kept or given back matters much, see README.md."""
    names = [n for n in os.environ if n.startswith("MALLOC_")] + ["GLIBC_TUNABLES"]
    said = [f"{n}={os.environ[n]}" for n in sorted(names) if n in os.environ]
    loaded = [Path(p).name for p in os.environ.get("LD_PRELOAD", "").replace(":", " ").split()]
    return " ".join(said + loaded) or "the system's, as it is"


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(CASES), help="default: %(default)s")
    parser.add_argument("--dropout", type=numbers, default="0,0.1", help="default: %(default)s")
    parser.add_argument("--only", default=",".join(BUILDERS), help=f"contenders besides {OURS}; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=0, help="a timing is the median of so many; default: 3, d512 1")
    parser.add_argument("--threads", type=int, default=cores(), help="default: all cores, here %(default)s")
    parser.add_argument("--out", type=Path, help="a JSON file for everything")
    parser.add_argument("--markdown", type=Path, help="a Markdown file for the tables")
    options = parser.parse_args()
    options.cases, only = options.cases.split(","), options.only.split(",")
    for name, known in [(c, CASES) for c in options.cases] + [(c, BUILDERS) for c in only]:
        if name not in known:
            parser.error(f"there is no {name!r}; there are {', '.join(known)}")
    if min(options.rounds, options.threads, options.steps + 1) < 1:
        parser.error("--rounds and --threads must be at least 1, and --steps at least 0")
    options.contenders = [name for name in BUILDERS if name in only or name == OURS]
    return options


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
