"""How fast parallel text becomes arrays, and how much memory that takes.

    python benchmarks/preparing.py [--lines 2000000] [--tokenizer bpe] [--vocabulary 8000]

Writes made-up text to a temporary directory (about 180 bytes a pair), prepares it as `sixfold train` would, and
prints the time of each stage, lines (pairs) per minute over all of them, and the peak memory of the process.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from sixfold.config.schema import Config, Data
from sixfold.training.runner import prepare

LETTERS = np.array(list("etaoinshrdlucmfwypvbgkqjxz"))


def made_up_words(number: int, generator: np.random.Generator) -> list[str]:
    """Words of 2 to 10 letters, frequent letters more often."""
    chances = 1 / np.arange(2, len(LETTERS) + 2)
    lengths = generator.integers(2, 11, number)
    return ["".join(generator.choice(LETTERS, length, p=chances / chances.sum())) for length in lengths]


def write_text(path: Path, lines: int, lengths: np.ndarray, seed: int) -> None:
    """Sentences of words that are as frequent as Zipf's law says."""
    generator = np.random.default_rng(seed)
    words = made_up_words(100_000, generator)
    chances = np.cumsum(1 / np.arange(1, len(words) + 1))
    with open(path, "w", encoding="utf-8") as file:
        for start in range(0, lines, 10_000):
            counts = lengths[start : start + 10_000]
            drawn = np.searchsorted(chances, generator.random(counts.sum()) * chances[-1])
            ends = np.cumsum(counts)
            for begin, end in zip(ends - counts, ends, strict=True):
                file.write(" ".join([words[i] for i in drawn[begin:end]]) + ".\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=2_000_000)
    parser.add_argument("--tokenizer", default="bpe")
    parser.add_argument("--vocabulary", type=int, default=8000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        generator = np.random.default_rng(0)
        lengths = np.clip(np.exp(generator.normal(2.5, 0.6, asked.lines)), 3, 50)
        for seed, side in enumerate(("en", "de")):
            noise = np.exp(generator.normal(0, 0.15, asked.lines))
            write_text(folder / f"train.{side}", asked.lines, np.maximum(1, lengths * noise).astype(np.int64), seed)
        size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{asked.lines:,} pairs, {size:,.0f} MB of text; peak memory before: {before:,.0f} MB", flush=True)
        data = Data(
            train=str(folder / "train"),
            source="en",
            target="de",
            tokenizer=asked.tokenizer,
            vocabulary=asked.vocabulary,
        )
        stages: dict[str, float] = {}
        started = time.perf_counter()

        def tell(what: str, done: int, total: int | None) -> None:
            stages[what] = time.perf_counter() - started

        prepared = prepare(Config(data=data), folder / "data", progress=tell)
        seconds = time.perf_counter() - started
        print("\n".join(prepared.report.lines()))
        print("seconds until the end of each stage:", {what: round(end) for what, end in stages.items()})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{seconds:,.0f} seconds: {asked.lines / seconds * 60:,.0f} lines a minute; peak memory {peak:,.0f} MB")


if __name__ == "__main__":
    main()
