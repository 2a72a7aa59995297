"""The lectures' table of translation systems in miniature: each trained for the same time on English-German help texts.

    sixfold prepare libreoffice --source en --target de --out help-en-de
    python benchmarks/translation.py --minutes 10 [--only ROW,…] [--workers 2] [--table]

A system is trained by one process with one thread, whose minutes are minutes of computing (by_cpu_time.py). Before, its
learning rate is chosen by its validation loss in probes of two minutes, around the rate of the plan. Sizes are fixed
below: of about as many parameters in layers as the small Transformer has, or more where a system is known to need them.
The score is that of the test part, with the beam and the length penalty that all systems share. Each finished row is
written to results/translation/ at once, and rows that are there are skipped. An ensemble has the models of two seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sixfold
from sixfold.api.load import open_run
from sixfold.disk.atomic import write_text
from sixfold.models.build import build
from sixfold.models.count import count
from sixfold.runs.run import Run
from sixfold.scoring.held_out import own_references
from sixfold.scoring.report import find_metrics, score_texts

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "translation"
PROBES = (0.5, 1.0, 2.0)  # times the rate of the plan
PROBE_MINUTES = 2.0
SPEED_LINES = 200  # of the test part, whose greedy translation is timed
DECODING = {"beam_size": 4, "length_penalty": "average"}


@dataclass(frozen=True)
class System:
    """One row of the table."""

    about: str  # as the lectures name it
    published: str  # BLEU on WMT English-German / English-French
    options: tuple[str, ...] = ()  # of `sixfold train`
    seeds: tuple[int, ...] = (1,)  # one model for each
    after: str = ""  # the row whose model it begins with
    decoding: tuple[tuple[str, Any], ...] = ()  # settings besides `DECODING`


def sizes(width: int, layers: int, **rest: int) -> tuple[str, ...]:
    keys = {"d_model": width, "layers": layers, **rest}
    return tuple(word for key, value in keys.items() for word in (f"--model.{key}", str(value)))


def modified(name: str, *options: str) -> tuple[str, ...]:
    return ("--model.modifications", "[]", "--modify", name, *options)


WORDS = ("--data.tokenizer", "words", "--data.vocabulary", "8000")
GNMT = modified("gnmt", *sizes(192, 3))
SYSTEMS = {
    "bytenet": System("ByteNet", "23.75 / –", modified("bytenet", "--data.tokenizer", "characters", *sizes(128, 10))),
    "lstm": System("LSTM without attention", "– / –", modified("lstm", *sizes(256, 2))),
    "bahdanau": System("LSTM with attention (Bahdanau)", "– / –", modified("bahdanau", *sizes(192, 2))),
    "luong": System("LSTM with attention (Luong)", "– / –", modified("luong", *sizes(192, 2))),
    "deep_att": System(
        "Deep-Att + PosUnk",
        "– / 39.2",
        modified("deep_att", *WORDS, *sizes(192, 3)),
        decoding=(("replace_unknown", True),),
    ),
    "gnmt": System("GNMT", "– / –", GNMT),
    "gnmt_rl": System("GNMT + RL", "24.6 / 39.92", ("--task", "reward:metric=gleu"), after="gnmt"),
    "conv_s2s": System("ConvS2S", "25.16 / 40.46", modified("conv_s2s", *sizes(128, 4))),
    "moe": System("MoE", "26.03 / 40.56", modified("moe_lstm:experts=8", *sizes(192, 3))),
    "gnmt_rl_ensemble": System(
        "GNMT + RL, ensemble", "26.30 / 41.16", ("--task", "reward:metric=gleu"), seeds=(1, 2), after="gnmt"
    ),
    "conv_s2s_ensemble": System(
        "ConvS2S, ensemble", "26.36 / 41.29", modified("conv_s2s", *sizes(128, 4)), seeds=(1, 2)
    ),
    "transformer": System("Transformer (small)", "27.3 / 38.1"),
    "transformer_large": System("Transformer (larger)", "28.4 / 41.8", sizes(192, 4)),
}


def main() -> None:
    options = parse()
    if not options.table:
        RESULTS.mkdir(parents=True, exist_ok=True)
        options.runs.mkdir(parents=True, exist_ok=True)
        wanted = [name for name in SYSTEMS if not options.only or name in options.only.split(",")]
        missing = [name for name in wanted if not result_of(name, options.minutes).exists()]
        with ThreadPoolExecutor(options.workers) as pool:
            list(pool.map(lambda name: make_row(name, options), missing))
    print(table(options.minutes))


def make_row(name: str, options: argparse.Namespace) -> None:
    """Train the models of a row that are missing, and score them."""
    system = SYSTEMS[name]
    runs = [trained(name, seed, options) for seed in system.seeds]
    row = {"row": name, "minutes": options.minutes, **described(runs[0]), **scored(runs, system)}
    write_text(result_of(name, options.minutes), json.dumps(row, indent=2) + "\n")
    print(json.dumps(row), flush=True)


def trained(name: str, seed: int, options: argparse.Namespace) -> Path:
    """The run of a system with a seed; two rows may share it."""
    system = SYSTEMS[name]
    out = options.runs / f"{name.removesuffix('_ensemble')}-{seed}-{options.minutes:g}"
    if (out / "model.json").exists() and finished(out):
        return out
    given = ["help-en-de", *system.options, "--training.seed", str(seed)]
    if system.after:
        given += ["--from", str(trained(system.after, seed, options))]
    rate = best_rate(name, given, options)
    train([*given, "--training.learning_rate", f"{rate:g}"], options.minutes, out)
    return out


def best_rate(name: str, given: list[str], options: argparse.Namespace) -> float:
    """The rate with the lowest validation loss after a short run."""
    command = [sys.executable, "-m", "sixfold", "plan", *given, "--training.minutes", f"{options.minutes:g}", "--json"]
    plan = json.loads(subprocess.run(command, env=one_thread(), check=True, capture_output=True).stdout)
    usual = plan["plan"]["training.learning_rate"]["value"]
    losses = {}
    for factor in PROBES:
        rate = float(f"{factor * usual:.3g}")
        out = options.runs / f"probe-{name.removesuffix('_ensemble')}-{rate:g}"
        if not finished(out):
            train([*given, "--training.learning_rate", f"{rate:g}"], PROBE_MINUTES, out)
        losses[rate] = validations(out)[-1]["loss"]
    return min(losses, key=lambda rate: losses[rate])


def train(given: list[str], minutes: float, out: Path) -> None:
    """`sixfold train` by minutes of computing."""
    command = [sys.executable, str(HERE / "by_cpu_time.py"), "train", *given, "--training.minutes", f"{minutes:g}"]
    log = out.with_name(f"{out.name}.out")
    with log.open("w") as file:
        done = subprocess.run([*command, "--out", str(out), "--overwrite"], env=one_thread(), stdout=file, stderr=file)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed; {log} has its messages")


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def records(run: Path) -> list[dict[str, Any]]:
    log = run / "log.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def validations(run: Path) -> list[dict[str, Any]]:
    return [record for record in records(run) if record["kind"] == "valid"]


def finished(run: Path) -> bool:
    return any(record["kind"] == "stopped" for record in records(run))


def described(directory: Path) -> dict[str, Any]:
    """Sizes, cost and speed of a model's training."""
    opened = open_run(directory, "cpu")
    last = [record for record in records(directory) if record["kind"] == "train"][-1]
    report = json.loads((directory / "run.json").read_text())["report"]["parts"]["train"]
    rows, source, target = report["rows"], report["source_tokens"], report["target_tokens"]
    model = build(opened.model.sizes, opened.model.assembly.modifications, opened.model.kind, device="meta")
    pair = count(model, max(round(source / rows), 1), max(round(target / rows), 1)).operations
    return {
        "parameters": sum(p.numel() for p in opened.model.parameters()),
        "width": opened.model.sizes.d_model,
        "layers": opened.model.sizes.encoder_layers,
        "rate": opened.config.training.learning_rate,
        "steps": last["step"],
        "epochs": last["tokens"] / target,
        "training_flops": 6 * pair * last["tokens"] * rows / target,  # 2 for each product; backward twice as many
        "training_tokens_per_second": last["tokens"] / last["seconds"],
        "valid_loss": [[record["step"], record["loss"]] for record in validations(directory)],
    }


def scored(runs: list[Path], system: System) -> dict[str, Any]:
    """BLEU and chrF of the test part, and the speed of decoding."""
    opened = open_run(runs[0], "cpu")
    references = own_references(Run(runs[0]), opened.config, opened.task, opened.tokenizers, "test")
    translator = sixfold.load(runs, device="cpu")
    settings = {**DECODING, **dict(system.decoding)}
    sources = [reference.source for reference in references]
    outputs = [found.text for found in translator.translate(sources, **settings)]
    results = score_texts(outputs, [reference.targets for reference in references], find_metrics("bleu,chrf"))
    began = time.process_time()
    greedy = translator.translate(sources[:SPEED_LINES], beam_size=1)
    seconds = time.process_time() - began
    tokens = sum(len(opened.tokenizers.target.encode(found.text)) + 1 for found in greedy)
    return {
        **{result.name: result.value for result in results},
        "signature": results[0].signature,
        "lines": len(sources),
        "settings": settings,
        "decoding_tokens_per_second": tokens / seconds,
    }


def result_of(name: str, minutes: float) -> Path:
    return RESULTS / f"{name}-{minutes:g}.json"


COLUMNS = (
    *("system", "BLEU", "chrF2", "published BLEU, En–De / En–Fr", "parameters", "training FLOPs", "epochs"),
    *("tokens/s, training", "tokens/s, decoding"),
)


def table(minutes: float) -> str:
    """Markdown: the rows that are there."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for name, system in SYSTEMS.items():
        path = result_of(name, minutes)
        if not path.exists():
            continue
        row = json.loads(path.read_text())
        cells = (
            *(system.about, f"{row['bleu']:.1f}", f"{row['chrf']:.1f}", system.published, f"{row['parameters']:,}"),
            *(f"{row['training_flops']:.1e}", f"{row['epochs']:.1f}", f"{row['training_tokens_per_second']:,.0f}"),
            f"{row['decoding_tokens_per_second']:,.0f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of computing, for each model")
    parser.add_argument("--only", default="", help="rows, separated by commas")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--runs", type=Path, default=Path("runs/translation"), help="directory of the trained models")
    parser.add_argument("--table", action="store_true", help="print the finished rows, and train nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
