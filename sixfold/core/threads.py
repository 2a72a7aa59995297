"""The number of threads this process may use, and how they wait for each other.

torch is imported only where its own number is needed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # a user's own choice of how threads wait
_SHORT_SPIN = "1000"  # see benchmarks/README.md, "A busy machine"
_SAMPLES, _BETWEEN = 5, 0.01  # looks at what else is running; seconds
_RUNNING = Path("/proc/loadavg")  # its fourth field: threads that run now / threads


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def usual_threads() -> int:
    """PyTorch's default, which follows OMP_NUM_THREADS, but at most the number of cores."""
    import torch

    return min(torch.get_num_threads(), cores())


def sleep_soon_if_busy() -> bool:
    """Beside other busy processes, let waiting threads spin for a short time only. → whether it was done

    A thread that spins keeps the core from the thread that it waits for. On an idle machine, spinning is faster. The
    setting works only before torch is imported. Child processes inherit it. What the user has set stays.
    """
    if "torch" in sys.modules or any(name in os.environ for name in _WAITING) or not _is_busy():
        return False
    os.environ["GOMP_SPINCOUNT"] = _SHORT_SPIN
    return True


def _is_busy() -> bool:
    """Whether a thread on each core would be more than this machine can run beside the other processes."""
    return _others() + cores() > (os.cpu_count() or 1)


def _others() -> int:
    """The fewest threads of other processes that ran at once in a short time; 0 if the system does not tell."""
    found = []
    for sample in range(_SAMPLES):
        if sample:
            time.sleep(_BETWEEN)
        try:
            running, _, _ = _RUNNING.read_text().split()[3].partition("/")
            found.append(int(running) - 1)  # without this thread
        except (OSError, ValueError, IndexError):
            return 0
    return min(found)
