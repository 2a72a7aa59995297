"""How much memory the loss takes over a large vocabulary: in chunks, as sixfold does, and with all logits at once.

    python benchmarks/loss_memory.py

Each way runs in a process of its own, and its figure is how far the highest resident memory of that process
rises from just before the loss until after its backward pass. Both report the loss and a checksum of the gradient, so
that one can see that they do the same.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from sixfold.bench.memory import resident
from sixfold.core.ids import PAD
from sixfold.core.loss import chunked_cross_entropy

MEBI = 1 << 20


def chunked(x: Tensor, table: Tensor, targets: Tensor) -> Tensor:
    return chunked_cross_entropy(lambda xs: xs @ table.T, x, targets, [table])[0]


def whole(x: Tensor, table: Tensor, targets: Tensor) -> Tensor:
    logits = x @ table.T
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=PAD, reduction="sum")


WAYS = {"chunked": chunked, "whole": whole}


def measure(way: str, words: int, length: int, rows: int, width: int) -> dict[str, float]:
    """Run once with little, so that libraries are there; then with everything."""
    generator = torch.Generator().manual_seed(1)

    def run(words: int, length: int, rows: int) -> tuple[Tensor, Tensor, float]:
        x = torch.randn(rows, length, width, generator=generator).requires_grad_()
        table = (torch.randn(words, width, generator=generator) * width**-0.5).requires_grad_()
        targets = torch.randint(1, words, (rows, length), generator=generator)
        before = peak()
        loss = WAYS[way](x, table, targets)
        loss.backward()
        assert x.grad is not None
        return loss.detach(), x.grad, peak() - before

    run(100, 8, 1)
    loss, gradient, memory = run(words, length, rows)
    per_token = float(loss) / (rows * length)
    return {"memory": memory, "loss": per_token, "gradient": float(gradient.abs().sum())}


def peak() -> float:
    """The most memory that was resident so far, in MiB."""
    return resident(highest=True) / MEBI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--words", type=int, default=50_000)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--way", choices=WAYS, help="measure one in this process, and print JSON")
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in ("words", "length", "rows", "width")}
    if options.way:
        print(json.dumps(measure(options.way, **sizes)))
        return
    logits = 4 * options.rows * options.length * options.words / MEBI
    print(", ".join(f"{name} {number:,}" for name, number in sizes.items()) + f"; logits alone: {logits:,.0f} MiB")
    print("| way     | peak memory | loss per token | sum of gradient |")
    print("| ------- | ----------- | -------------- | --------------- |")
    for way in WAYS:
        command = [sys.executable, str(Path(__file__)), "--way", way]
        command += [word for name, number in sizes.items() for word in (f"--{name}", str(number))]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"| {way:7} | {found['memory']:7,.0f} MiB | {found['loss']:14.6f} | {found['gradient']:15.4f} |")


if __name__ == "__main__":
    main()
