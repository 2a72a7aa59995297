"""Refuse a model whose weights do not fit into the machine's memory before allocating any of it.

The kernel overcommits memory and later kills the process, which then cannot print a reason.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from torch import nn

_CONTAINER = Path("/sys/fs/cgroup/memory.max")  # the memory limit of a container in bytes, or "max"


def machine_memory() -> int:
    """The memory limit of this process in bytes."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        most = min(most, int(_CONTAINER.read_text()))
    return most


def bytes_of(model: nn.Module) -> int:
    """Bytes of its parameters and buffers; a model on the meta device works, too."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))


def need_memory(needed: int) -> None:
    """Raise a ValueError if `needed` bytes of weights exceed the machine's memory."""
    most = machine_memory()
    if needed > most:
        raise ValueError(
            f"the weights of this model take {needed / 2**30:,.1f} GiB, but this machine has {most / 2**30:,.1f} GiB "
            f"of memory; choose a smaller d_model, d_ff or vocabulary, or fewer layers"
        )
