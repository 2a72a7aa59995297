"""Describes the machine of a measurement, and warns if it was not idle."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from sixfold.bench.options import PEERS
from sixfold.core.threads import cores

_BUSY = 0.5  # load average of the last minute above which timings are unreliable


def machine(program: str) -> dict[str, Any]:
    """What timings may depend on: the machine, its load, the versions and the command, which runs `program`."""
    return {
        "cpu": cpu_model(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "allocator": allocator(),
        "load at the start": [round(v, 2) for v in os.getloadavg()],
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "sixfold", *PEERS)},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"{program} {shlex.join(sys.argv[1:])}".rstrip(),
    }


def warning(load: float) -> str | None:
    """A warning if the load average at the start shows other work, otherwise None."""
    if load <= _BUSY:
        return None
    return (
        f"this machine is not idle (load {load:.1f} in the last minute): other processes are running, so timings are "
        "unreliable"
    )


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def allocator() -> str:
    """The allocator settings in the environment: whether large blocks are kept or returned changes timings much."""
    names = [n for n in os.environ if n.startswith("MALLOC_")] + ["GLIBC_TUNABLES"]
    settings = [f"{n}={os.environ[n]}" for n in sorted(names) if n in os.environ]
    loaded = [Path(p).name for p in os.environ.get("LD_PRELOAD", "").replace(":", " ").split()]
    return " ".join(settings + loaded) or "the system's default"


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
