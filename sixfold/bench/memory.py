"""Peak memory of a pass over a text, measured in a separate process.

    {"directory": …, "library": …, "way": …, "lengths": […], …}  ──▶  a line of JSON for each length

The result is the peak of the process's resident memory, minus its resident memory with the model and all libraries
loaded. On Linux the peak is VmHWM of /proc/self/status, not ru_maxrss, which a process inherits from its parent. A
length is skipped if four times the memory or the time of half that length is not available.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_WARM_UP = 64  # tokens
LEAST = 1.0  # fewest seconds, so that the shortest length is always measured
_WORST = 4.0  # largest factor in time or memory when the length doubles


def passes(directory: str, lengths: Sequence[int], seconds: float, **job: Any) -> Iterator[dict[str, Any]]:
    """For each length, "bytes" and "seconds"; or "left_out", the reason why it and all longer ones are not measured."""
    asked = json.dumps({"directory": directory, "lengths": list(lengths), "until": time.time() + seconds, **job})
    command = [sys.executable, "-m", "sixfold.bench.memory_process"]
    found = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    yield from lines
    if found.returncode and not (lines and "left_out" in lines[-1]):
        next_one = lengths[len(lines)] if len(lines) < len(lengths) else lengths[-1]
        reason = (found.stderr.strip().splitlines() or [f"exit code {found.returncode}"])[-1]
        yield {"length": next_one, "left_out": f"the process that measures it ended: {reason}"}


def resident(highest: bool = False) -> int:
    """The resident memory of this process in bytes, now or at its peak."""
    if _STATUS.exists():
        name = "VmHWM:" if highest else "VmRSS:"
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_highest() -> None:
    """Reset the peak to the current value. If that is not possible, lengths must be measured in rising order."""
    try:
        _RESET.write_text("5")
    except OSError:
        return


def rise(act: Callable[[], Any], before: int) -> int:
    """The peak of the memory above `before` while `act` runs."""
    forget_highest()
    act()
    return max(0, resident(highest=True) - before)


def available() -> float:
    """Bytes of available memory; infinity if the system does not report it."""
    info = Path("/proc/meminfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return float("inf") if found is None else int(found.split()[1]) * 1024


def measured(act: Callable[[int], Any], lengths: Sequence[int], seconds: float) -> Iterator[dict[str, Any]]:
    """Measure one length after another, until the next would not fit into time or memory."""
    act(_WARM_UP)
    before, began, last = resident(), time.perf_counter(), (0.0, 0.0)
    for length in lengths:
        if last[0] * _WORST > seconds - (time.perf_counter() - began):
            yield {"length": length, "left_out": "it would take too long; give more --seconds"}
            return
        if last[1] * _WORST > available():
            yield {"length": length, "left_out": "there may not be enough memory"}
            return
        begin = time.perf_counter()
        size = rise(lambda length=length: act(length), before)  # type: ignore[misc]
        last = time.perf_counter() - begin, float(size)
        yield {"length": length, "bytes": size, "seconds": last[0]}
