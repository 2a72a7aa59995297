"""The number of threads this process may use. torch is imported only where its own number is needed."""

from __future__ import annotations

import os
import sys


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def usual_threads() -> int:
    """PyTorch's default, which follows OMP_NUM_THREADS, but at most the number of cores."""
    import torch

    return min(torch.get_num_threads(), cores())
