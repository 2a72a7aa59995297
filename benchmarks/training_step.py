"""How long a training step takes: sixfold's vanilla Transformer against others that train the same model.

    python benchmarks/training_step.py --out results.json --markdown results.md

README.md says what is measured and how; contenders.py, in what the contenders differ.
"""

import argparse
import gc
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from contenders import BUILDERS, CASES, LENGTH, ROWS, WORDS, Case, build_all

from sixfold.bench.machine import machine as described
from sixfold.bench.race import OURS, RESAMPLES, SEED, Contender, Ratio, race, ratio
from sixfold.core.threads import cores

GOAL = 0.97  # what the lower end of the interval against the fastest must reach
WARM_UP = 2  # steps
TOLERANCE = 0.03  # of the parameter counts
STEPS = {"d128": 3, "d256": 3, "d512": 1}  # of which a timing is the median


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
    return described(f"python benchmarks/{Path(sys.argv[0]).name}")


def method(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "rounds": options.rounds,
        "warm_up_steps": WARM_UP,
        "resamples": RESAMPLES,
        "seed": SEED,
        "goal": GOAL,
        "dtype": "float32",
    }


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
