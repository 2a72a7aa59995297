"""Products of rows with weights by one thread: sixfold's own against torch's, in turn, in float32 and in 8 bits.

python benchmarks/products.py
python benchmarks/products.py --sizes 512x2048 --rows 1,4,64
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from sixfold.bench.race import OURS, Contender, race, ratio
from sixfold.decoding.cpu import gemm
from sixfold.decoding.cpu.int8 import Matrix
from sixfold.decoding.cpu.llvm import SET
from sixfold.decoding.cpu.torch_private import int8_product

SECONDS = 0.01  # that a timing should take, at least
TORCH = "torch"


def repeated(multiply: Callable[[], object]) -> Callable[[], float]:
    """So often that a clock can tell."""
    multiply()
    begin = time.perf_counter()
    multiply()
    times = max(1, int(SECONDS / (time.perf_counter() - begin)))

    def step() -> float:
        for _ in range(times):
            multiply()
        return times

    return step


def pairs(inputs: int, outputs: int, rows: int) -> Iterator[tuple[str, dict[str, Callable[[], object]]]]:
    """What is multiplied by whom: float32, then 8 bits. torch's product of these is of whole numbers alone."""
    x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.zeros(outputs)
    y, turned, matrix = torch.empty(rows, outputs), weight.t().contiguous(), Matrix(weight)
    panels, int8_panels = gemm.panels(weight.numpy()), matrix.panels
    filled, scale = (gemm.padded(each.numpy()) for each in (bias, matrix.scale))
    whole, sums = x.mul(30).to(torch.int8), torch.empty(rows, outputs, dtype=torch.int32)
    x_array, y_array = x.numpy(), y.numpy()
    yield (
        "float32",
        {
            OURS: lambda: gemm.multiply(x_array, panels, filled, SET, y_array),
            TORCH: lambda: torch.addmm(bias, x, turned, out=y),
        },
    )
    suited = matrix.suited_to(rows)
    yield (
        "int8",
        {
            OURS: lambda: gemm.multiply_int8(x_array, int8_panels, scale, filled, SET, y_array),
            TORCH: lambda: int8_product(whole, suited, out=sums),
        },
    )


def compared(who: dict[str, Callable[[], object]], operations: int, rounds: int) -> list[str]:
    """Operations a second of both, and the ratio of their times."""
    times_each: dict[str, list[float]] = {name: [] for name in who}
    times = race([Contender(name, repeated(multiply)) for name, multiply in who.items()], rounds, 1, times_each)
    once = {name: np.array(times[name]) / times_each[name] for name in who}
    speeds = [f"{operations / float(np.median(once[name])) / 1e9:.0f}" for name in (OURS, TORCH)]
    return [*speeds, str(ratio(once[TORCH].tolist(), once[OURS].tolist()))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="256x1024,512x2048,2048x512,512x8000", help="inputs x outputs")
    parser.add_argument("--rows", default="1,4,16,64,160")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    if gemm.panels(np.zeros((1, 1), np.float32)) is None:
        raise SystemExit("this CPU has no fused multiply-add, and sixfold takes torch's products")
    print("| inputs × outputs | rows | precision | sixfold, GOP/s | torch, GOP/s | torch's time / sixfold's |")
    print("|---|---|---|---|---|---|")
    for size in options.sizes.split(","):
        inputs, outputs = map(int, size.split("x"))
        for rows in map(int, options.rows.split(",")):
            for precision, who in pairs(inputs, outputs, rows):
                cells = (
                    f"{inputs} × {outputs}",
                    rows,
                    precision,
                    *compared(who, 2 * inputs * outputs * rows, options.rounds),
                )
                print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
