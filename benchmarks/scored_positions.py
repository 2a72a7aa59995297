"""Masked words: what does it save that only the chosen positions reach the head?

    python benchmarks/scored_positions.py

One training step (forward and backward) of an encoder-only model on random text, 15 % of the words chosen: with the
other positions left out before the head, and with all of them in it. Each in a process of its own, in turn.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from statistics import median

SETTINGS = {"d_model": 256, "d_ff": 1024, "heads": 4, "encoder_layers": 4, "decoder_layers": 4, "vocab": 16_000}
ROWS, LENGTH, CHOSEN = 32, 128, 0.15


def measure(drop: bool, steps: int) -> dict[str, float]:
    """Median seconds of a step, and the peak of memory in MB over that of the first allocation of the weights."""
    import torch

    import sixfold
    from sixfold.core import loss

    if not drop:
        loss._MOSTLY_SCORED = 0.0
    torch.manual_seed(1)
    model = sixfold.build(sixfold.Sizes(**SETTINGS), model="encoder_only", seed=1).train()
    chance = torch.Generator().manual_seed(1)
    words = torch.randint(5, SETTINGS["vocab"], (ROWS, LENGTH), generator=chance)
    chosen = torch.rand(ROWS, LENGTH, generator=chance) < CHOSEN
    batch = sixfold.Batch(source=words.masked_fill(chosen, 4), targets=words, weights=chosen)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(steps + 2):
        begin = time.perf_counter()
        losses = model(batch)
        (losses.sum / losses.tokens).backward()
        model.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begin)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": median(seconds[2:]), "megabytes": peak, "loss": float(losses.sum / losses.tokens)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--worker", choices=["all", "scored"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.worker == "scored", options.steps)))
        return
    found: dict[str, list[dict[str, float]]] = {"all": [], "scored": []}
    for _ in range(options.rounds):
        for way, results in found.items():
            command = [sys.executable, __file__, "--worker", way, "--steps", str(options.steps)]
            results.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    for way, results in found.items():
        numbers = {key: median(each[key] for each in results) for key in results[0]}
        print(f"{way:7} {1000 * numbers['seconds']:.0f} ms  {numbers['megabytes']:.0f} MB  loss {numbers['loss']:.6f}")
    ratios = [a["seconds"] / s["seconds"] for a, s in zip(found["all"], found["scored"], strict=True)]
    print(f"time of all / time of scored: {median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]")


if __name__ == "__main__":
    main()
