"""Is the plan far off? Corpora that were not used to make its rules, trained by the plan and by four neighbours of it.

    python benchmarks/plan.py --corpora DIR [--minutes 3] [--workers 2] [--only CELL,…] [--again]

Each worker is one process with one thread, whose minutes are minutes of computing (by_cpu_time.py). A point is the plan
itself, or the plan with its width halved or doubled (layers follow), or with its learning rate halved or doubled. Every
finished row is written to results/plan/; rows that are there are skipped. --again trains the best point and the plan of
each cell with a second seed. The table is printed at the end, and by --table alone.

DIR holds the corpora, made by `sixfold prepare libreoffice --source en --target LANGUAGE --out DIR/help-en-LANGUAGE`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from threading import Lock

from sixfold.config.files import read_config
from sixfold.disk.atomic import write_text

RESULTS = Path(__file__).with_name("results") / "plan"
POINTS = ("plan", "half width", "double width", "half rate", "double rate")
CELLS = {  # name → language, form of the text
    "it": ("it", "pairs"),
    "cs": ("cs", "pairs"),
    "fi": ("fi", "pairs"),
    "tr-short": ("tr", "short pairs"),
    "es-characters": ("es", "characters"),
    "pl-text": ("pl", "text"),
}
SHORT = 12  # most words of a side of a short pair
MAKING = Lock()  # held while a plan is made


def main() -> None:
    options = parse()
    RESULTS.mkdir(parents=True, exist_ok=True)
    jobs = [] if options.table else list(wanted(options))
    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(lambda job: run(*job, options), jobs))
    print(table(options.minutes))


def wanted(options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """The rows to train: cell, point and seed."""
    cells = [cell for cell in CELLS if not options.only or cell in options.only.split(",")]
    for cell in cells:
        for point in dict.fromkeys((best_point(cell, options.minutes), "plan")) if options.again else POINTS:
            job = (cell, point, 2 if options.again else 1)
            if not path_of(*job, options.minutes).exists():
                yield job


def run(cell: str, point: str, seed: int, options: argparse.Namespace) -> None:
    """Train one row, and write its result."""
    with tempfile.TemporaryDirectory(prefix="sixfold-plan-") as folder:
        given = [*text_of(cell, options.corpora, Path(folder)), "--training.minutes", str(options.minutes)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        changed = changes(point, planned(cell, options, given, environment))
        out = Path(folder, "run")
        train = [sys.executable, str(Path(__file__).with_name("by_cpu_time.py")), "train"]
        command = [*train, *given, *changed, "--training.seed", str(seed), "--out", str(out)]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        last = [record for record in records if record["kind"] == "valid"][-1]
        config = read_config(out / "config.yaml")
        result = {
            "cell": cell,
            "point": point,
            "seed": seed,
            "minutes": options.minutes,
            "loss": last["loss"],
            "bleu": last.get("bleu"),
            "steps": last["step"],
            "width": config.model.d_model,
            "rate": config.training.learning_rate,
        }
        write_text(path_of(cell, point, seed, options.minutes), json.dumps(result, indent=2) + "\n")
        print(json.dumps(result), flush=True)


def planned(cell: str, options: argparse.Namespace, given: list[str], environment: dict[str, str]) -> dict[str, float]:
    """The width and the rate of the plan, which is made once for each cell: all points refer to the same one."""
    path = RESULTS / f"{cell}-{options.minutes:g}.plan"
    with MAKING:
        if not path.exists():
            command = [sys.executable, "-m", "sixfold", "plan", *given, "--json"]
            plan = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)["plan"]
            values = {"width": plan["model.d_model"]["value"], "rate": plan["training.learning_rate"]["value"]}
            write_text(path, json.dumps(values) + "\n")
    return json.loads(path.read_text())


def changes(point: str, plan: dict[str, float]) -> list[str]:
    """The settings of a point: the plan's width and rate, one of them changed."""
    factor = {"half": 0.5, "double": 2.0}.get(point.split()[0], 1.0)
    width = plan["width"] * (factor if point.endswith("width") else 1)
    rate = plan["rate"] * (factor if point.endswith("rate") else 1)
    return ["--model.d_model", str(int(width)), "--training.learning_rate", f"{rate:g}"]


def text_of(cell: str, corpora: Path, folder: Path) -> list[str]:
    """The options that name the text of a cell; selected text is written to `folder`."""
    language, form = CELLS[cell]
    corpus = corpora / f"help-en-{language}"
    if form == "pairs":
        return pairs(corpus, language)
    if form == "short pairs":
        for part in ("train", "valid"):
            sides = [(corpus / f"{part}.{end}").read_text().splitlines() for end in ("en", language)]
            kept = [pair for pair in zip(*sides, strict=True) if all(len(side.split()) <= SHORT for side in pair)]
            for end, texts in zip(("en", language), zip(*kept, strict=True), strict=True):
                (folder / f"{part}.{end}").write_text("".join(f"{text}\n" for text in texts))
        return pairs(folder, language)
    for part, characters in (("train", 1_000_000), ("valid", 60_000)):
        (folder / f"{part}.txt").write_text((corpus / f"{part}.{language}").read_text()[:characters])
    kind = "characters" if form == "characters" else "bpe"
    files = ["--data.train", str(folder / "train.txt"), "--data.valid", str(folder / "valid.txt")]
    return ["--task", "language_model", *files, "--data.tokenizer", kind]


def pairs(corpus: Path, language: str) -> list[str]:
    files = ["--data.train", str(corpus / "train"), "--data.valid", str(corpus / "valid")]
    return [*files, "--data.source", "en", "--data.target", language]


def path_of(cell: str, point: str, seed: int, minutes: float) -> Path:
    return RESULTS / f"{cell}-{minutes:g}-{point.replace(' ', '-')}-{seed}.json"


def rows(cell: str, minutes: float) -> dict[str, list[dict[str, float]]]:
    """The finished rows of a cell, by point."""
    found: dict[str, list[dict[str, float]]] = {}
    for point in POINTS:
        paths = [path_of(cell, point, seed, minutes) for seed in (1, 2)]
        found[point] = [json.loads(path.read_text()) for path in paths if path.exists()]
    return {point: results for point, results in found.items() if results}


def best_point(cell: str, minutes: float) -> str:
    found = rows(cell, minutes)
    return min(found, key=lambda point: found[point][0]["loss"])


def table(minutes: float) -> str:
    """Markdown: the validation loss (and BLEU) of each point, the mean over seeds."""
    lines = ["| cell | " + " | ".join(POINTS) + " | plan / best |", "|---" * (len(POINTS) + 2) + "|"]
    for cell in CELLS:
        found = rows(cell, minutes)
        if "plan" not in found:
            continue
        losses = {point: mean(each["loss"] for each in results) for point, results in found.items()}
        shown = [_shown(found.get(point)) for point in POINTS]
        lines.append(f"| {cell} | {' | '.join(shown)} | {losses['plan'] / min(losses.values()):.3f} |")
    return "\n".join(lines)


def _shown(results: list[dict[str, float]] | None) -> str:
    if not results:
        return ""
    bleu = [each["bleu"] for each in results if each["bleu"] is not None]
    of = f" ({mean(bleu):.1f} BLEU)" if bleu else ""
    return f"{mean(each['loss'] for each in results):.3f}{of}{' ×2' if len(results) > 1 else ''}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, default=Path())
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
