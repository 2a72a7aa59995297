"""Whether the weights of a model fit into the machine's memory, said before any of it is taken.

The kernel promises more memory than there is and kills the process that uses it, which then can't say why.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from torch import nn

_CONTAINER = Path("/sys/fs/cgroup/memory.max")  # bytes that a container may use, or "max"


def machine_memory() -> int:
    """Bytes of main memory that this process may have at most."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        most = min(most, int(_CONTAINER.read_text()))
    return most


def bytes_of(model: nn.Module) -> int:
    """What its parameters and buffers take, also of a model on the meta device."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))


def need_memory(needed: int) -> None:
    """Raise a ValueError if a model's weights of as many bytes can't be in main memory."""
    most = machine_memory()
    if needed > most:
        raise ValueError(
            f"the weights of this model take {needed / 2**30:,.1f} GiB, but this machine has {most / 2**30:,.1f} GiB "
            f"of memory; choose a smaller d_model, d_ff or vocabulary, or fewer layers"
        )
