"""Device, precision, random generators and determinism."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # read by CUDA when it is first used; without it, its sums are not repeatable


def choose_device(name: str, local: int = 0) -> torch.device:
    """The device of this name; "auto": CUDA if available, else MPS, else the CPU. `local` is the index of the GPU."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, found in there.items() if found)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"there is no device {name!r}; say auto, cpu, cuda or mps") from None
    if not there.get(device.type, False):
        raise ValueError(f"this machine has no {name}; say auto, which takes the fastest device that it has")
    return torch.device("cuda", local) if device.type == "cuda" and device.index is None else device


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bfloat16 if requested; with "auto", on GPUs that support it."""
    pays = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if precision == "bfloat16" or (precision == "auto" and pays):
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def generators(device: torch.device) -> Tensor:
    """The state of the random generators of a model on this device, as bytes."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    elif device.type == "mps":
        states.append(torch.mps.get_rng_state())
    return torch.cat(states)


def set_generators(states: Tensor, device: torch.device) -> None:
    own = len(torch.get_rng_state())
    torch.set_rng_state(states[:own])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[own:], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(states[own:])


def be_deterministic(yes: bool) -> None:
    """Make a step repeatable to the bit (on one machine, with one number of threads), or not."""
    torch.use_deterministic_algorithms(yes)
    # Filling costs time, and no code here reads uninitialised memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if yes:
        os.environ.setdefault(_WORKSPACE, ":4096:8")
        torch.backends.cudnn.benchmark = False


@contextmanager
def left_as_it_was() -> Iterator[None]:
    """Restore torch's random generators, its determinism flags and the variable of CUDA's on exit."""
    workspace = os.environ.get(_WORKSPACE)
    strict = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    benchmark = torch.backends.cudnn.benchmark
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = benchmark
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)
