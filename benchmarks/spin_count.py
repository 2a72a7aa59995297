"""How long should OpenMP threads spin before they sleep? Training steps by GOMP_SPINCOUNT, idle and on a busy machine.

    python benchmarks/spin_count.py [--counts 100,1000,10000,passive,one] [--sizes 128,256,512] [--rounds 5]

Each round starts one process per setting, in turn, which times training steps of an encoder-decoder on random tokens.
`default` sets nothing: libgomp's own count. `passive` is OMP_WAIT_POLICY=passive, `one` OMP_NUM_THREADS=1. Speeds are
relative to `default` on the idle machine, in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median

STEPS, WARM = 6, 2
BUSY = "while True: pass"


def step_seconds(width: int) -> float:
    """Seconds of one training step, in this process: the median of some."""
    import torch

    from sixfold import Batch, Sizes, build

    sizes = Sizes(d_model=width, d_ff=2 * width, heads=4, encoder_layers=3, decoder_layers=3, vocab=4000)
    model, ids = build(sizes, seed=1), torch.randint(5, 4000, (64, 33), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    times = []
    for _ in range(WARM + STEPS):
        started = time.perf_counter()
        losses = model(Batch(source=ids, inputs=ids[:, :-1], targets=ids[:, 1:]))
        (losses.sum / losses.tokens).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - started)
    return median(times[WARM:])


def measured(width: int, count: str, busy: bool) -> float:
    """Seconds of a step in a new process with this setting."""
    settings = {"default": {}, "passive": {"OMP_WAIT_POLICY": "passive"}, "one": {"OMP_NUM_THREADS": "1"}}
    without = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    environment = {**without, **settings.get(count, {"GOMP_SPINCOUNT": count})}
    other = subprocess.Popen([sys.executable, "-c", BUSY]) if busy else None
    try:
        command = [sys.executable, __file__, "--only", str(width)]
        return float(json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout))
    finally:
        if other is not None:
            other.kill()
            other.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", default="100,1000,10000,100000")
    parser.add_argument("--sizes", default="128,256,512")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(step_seconds(options.only)))
        return
    counts = ["default", *options.counts.split(",")]
    for width in map(int, options.sizes.split(",")):
        found: dict[tuple[str, bool], list[float]] = {}
        for _ in range(options.rounds):
            for busy in (False, True):
                for count in counts:
                    found.setdefault((count, busy), []).append(measured(width, count, busy))
        for count in counts:
            idle, busy_speed = (
                [base / each for base, each in zip(found["default", False], found[count, busy], strict=True)]
                for busy in (False, True)
            )
            print(
                f"d {width}, {count}: idle {median(idle):.3f} [{min(idle):.3f}, {max(idle):.3f}], "
                f"busy {median(busy_speed):.3f} [{min(busy_speed):.3f}, {max(busy_speed):.3f}]",
                flush=True,
            )


if __name__ == "__main__":
    main()
