"""How many threads this process may use. torch is imported only to be asked for its number."""

from __future__ import annotations

import os
import sys


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def usual_threads() -> int:
    """As many as PyTorch takes by itself, which follows OMP_NUM_THREADS; no more than there are cores."""
    import torch

    return min(torch.get_num_threads(), cores())
