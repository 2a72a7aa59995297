"""Distributed training: all code that knows of ranks. `torchrun` starts the processes; without it there is one.

The training loop gets everything here: which rank writes, sums over ranks, the reduction of gradients. Processes
exchange numbers and bytes; nothing is pickled.
"""

from __future__ import annotations

import datetime
import gc
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from sixfold.core.batch import Losses
from sixfold.core.device import choose_device
from sixfold.core.parts import declared
from sixfold.models.model import Model

T = TypeVar("T")
_PATIENCE = datetime.timedelta(hours=12)  # one process may prepare a large corpus while the others wait


class Processes:
    """The processes that train one model, seen from one of them."""

    def __init__(self, rank: int = 0, size: int = 1, device: torch.device | None = None):
        self.rank, self.size = rank, size
        self.device = device or torch.device("cpu")

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and messages."""
        return self.rank == 0

    def wrap(self, model: Model, parallel: str) -> nn.Module:
        """The model wrapped in DDP or FSDP, which reduce gradients over all processes; alone, the model itself."""
        if self.size == 1:
            return model
        if parallel == "fsdp":
            return _shard(model, init_device_mesh(self.device.type, (self.size,)))
        devices = [self.device] if self.device.type == "cuda" else None
        # Without find_unused_parameters, DDP rebuilds its buckets after step 1, also after the first step of a resumed
        # run, and gradient sums over more than two processes would differ in the last bit.
        return DistributedDataParallel(_WithSpare(model), device_ids=devices, find_unused_parameters=True)

    def mine(self, pieces: int) -> range:
        """The indices of the pieces of a step that this process computes."""
        return range(self.rank, pieces, self.size)

    def gradients(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """A context for one backward pass: gradients are reduced only in the last micro-batch of a step."""
        if self.size == 1:
            return nullcontext()
        if isinstance(model, DistributedDataParallel):
            return nullcontext() if last else model.no_sync()
        from torch.distributed.fsdp import FSDPModule  # slow to import, and not needed by one process

        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)
        return nullcontext()

    def sum(self, *numbers: float) -> list[float]:
        """The sum of each number over all processes, in float64: every process gets the same result."""
        if self.size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self._talk)
        dist.all_reduce(total)
        return total.tolist()

    def any(self, yes: bool) -> bool:
        return self.sum(float(yes))[0] > 0

    def agree(self, value: Any) -> Any:
        """The value (JSON) of rank 0, on every process."""
        return self.gather(value)[0]

    def gather(self, value: Any) -> list[Any]:
        """The value (JSON) of each process, in order of rank."""
        if self.size == 1:
            return [value]
        encoded = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(bytes(t.tolist())) for t in self.gather_tensors(encoded)]

    def gather_tensors(self, tensor: Tensor) -> list[Tensor]:
        """The one-dimensional tensor of each process, in order of rank; lengths may differ."""
        if self.size == 1:
            return [tensor]
        lengths = [int(n) for n in self._all(torch.tensor([len(tensor)]))]
        padded = torch.zeros(max(lengths), dtype=tensor.dtype)
        padded[: len(tensor)] = tensor
        return [t[:n].cpu() for t, n in zip(self._all(padded), lengths, strict=True)]

    def _all(self, tensor: Tensor) -> list[Tensor]:
        tensor = tensor.to(self._talk)
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(gathered, tensor)
        return gathered

    def wait(self) -> None:
        """A barrier."""
        self.sum(0.0)

    @property
    def _talk(self) -> torch.device:
        """The device of tensors that are exchanged: NCCL needs CUDA, gloo the CPU."""
        return self.device if self.device.type == "cuda" else torch.device("cpu")


@contextmanager
def reported_once() -> Iterator[None]:
    """Report a mistake once per machine: before the processes join, each finds it, but only local rank 0 reports it."""
    try:
        yield
    except ValueError:
        if int(os.environ.get("LOCAL_RANK", "0")) > 0:
            raise SystemExit(2) from None
        raise


@contextmanager
def together(device: str) -> Iterator[Processes]:
    """Join the process group that torchrun started, if there is one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Processes(device=choose_device(device))
        return
    with reported_once():
        chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    store, rank, _ = next(dist.rendezvous("env://", timeout=_PATIENCE))
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    with _one_voice(dist.PrefixStore("sixfold", store), rank):
        yield Processes(rank, size, chosen)
        # Free any DistributedDataParallel now: later it would destroy the group while holding the GIL, for which the
        # group's threads may wait, a deadlock.
        gc.collect()
        dist.destroy_process_group()  # not after an error: it waits for all ranks


@contextmanager
def _one_voice(store: dist.Store, rank: int) -> Iterator[None]:
    """Report only the first error: the other processes fail soon after, because that rank is missing."""
    try:
        yield
    except Exception:
        try:
            speaker = int(store.compare_set("speaker", "", str(rank)))
        except RuntimeError:  # the process that hosts the store has ended
            speaker = 0
        if speaker != rank:
            raise SystemExit(1) from None
        raise


class _WithSpare(nn.Module):
    """A model with an unused parameter: DDP warns if find_unused_parameters finds none."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model
        self.spare = nn.Parameter(next(model.parameters()).new_zeros(1))

    def forward(self, *arguments: Any) -> Losses:
        return self.model(*arguments)


def _shard(model: Model, mesh: DeviceMesh) -> nn.Module:
    """FSDP2: each process keeps a shard of every layer, and of all else (tables, head) as one group.

    A layer's weights are gathered only while it is called. A layer that is applied many times is one module.
    """
    from torch.distributed.fsdp import fully_shard

    for stack in map(declared, model.children()):
        for layer in stack.units():
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def share(items: Sequence[T], processes: Processes) -> Sequence[T]:
    """This process's share of the items: rank, rank + size, …"""
    return items[processes.rank :: processes.size]


def is_first() -> bool:
    """Whether this is rank 0; works also outside of `together`."""
    return int(os.environ.get("RANK", "0")) == 0
