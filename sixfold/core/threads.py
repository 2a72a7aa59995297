"""The number of threads this process may use. torch is imported only where its own number is needed."""

from __future__ import annotations

import os
import sys

SPIN_COUNT = 1000  # iterations; benchmarks/spin_count.py measures others


def limit_spinning() -> None:
    """Let waiting OpenMP threads sleep soon, unless the user has set how they wait. Call it before torch is imported.

    libgomp reads the variable when torch loads it. By default threads spin for milliseconds at every barrier. Beside
    another busy process the awaited thread may not even be running, and a training step takes several times as long.
    Child processes inherit the setting.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def usual_threads() -> int:
    """PyTorch's default, which follows OMP_NUM_THREADS, but at most the number of cores."""
    import torch

    return min(torch.get_num_threads(), cores())
