"""All that knows of ranks. `torchrun` starts the processes; alone, a process is a group of one.

Everything the loop asks of the group is here: who writes, what a sum over all is, how a model's gradients
come together. What they say to each other here is numbers and bytes; nothing is pickled.
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
        """Whether this one writes and speaks for all."""
        return self.rank == 0

    def wrap(self, model: Model, parallel: str) -> nn.Module:
        """The model as it is to be called, so that gradients are those of all processes."""
        if self.size == 1:
            return model
        if parallel == "fsdp":
            return _shard(model, init_device_mesh(self.device.type, (self.size,)))
        devices = [self.device] if self.device.type == "cuda" else None
        # Had torch not to look for unused parameters, it would order gradients anew after the first step, also after
        # the first of a run that is resumed, and their sums over more than two processes would differ in the last bit.
        return DistributedDataParallel(_WithSpare(model), device_ids=devices, find_unused_parameters=True)

    def mine(self, pieces: int) -> range:
        """Which pieces of a step are this process's."""
        return range(self.rank, pieces, self.size)

    def gradients(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Gradients meet once a step, after its last micro-batch."""
        if self.size == 1:
            return nullcontext()
        if isinstance(model, DistributedDataParallel):
            return nullcontext() if last else model.no_sync()
        from torch.distributed.fsdp import FSDPModule  # slow to import, and of no use to one process

        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)
        return nullcontext()

    def sum(self, *numbers: float) -> list[float]:
        """The sum of each number over all processes: exact, and the same everywhere."""
        if self.size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64, device=self._talk)
        dist.all_reduce(total)
        return total.tolist()

    def any(self, yes: bool) -> bool:
        return self.sum(float(yes))[0] > 0

    def agree(self, value: Any) -> Any:
        """What the first process says (JSON), everywhere."""
        return self.gather(value)[0]

    def gather(self, value: Any) -> list[Any]:
        """What each process says (JSON), in order of rank."""
        if self.size == 1:
            return [value]
        said = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(bytes(t.tolist())) for t in self.gather_tensors(said)]

    def gather_tensors(self, tensor: Tensor) -> list[Tensor]:
        """Each process's tensor of one dimension, however long, in order of rank."""
        if self.size == 1:
            return [tensor]
        lengths = [int(n) for n in self._all(torch.tensor([len(tensor)]))]
        padded = torch.zeros(max(lengths), dtype=tensor.dtype)
        padded[: len(tensor)] = tensor
        return [t[:n].cpu() for t, n in zip(self._all(padded), lengths, strict=True)]

    def _all(self, tensor: Tensor) -> list[Tensor]:
        tensor = tensor.to(self._talk)
        everybody = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(everybody, tensor)
        return everybody

    def wait(self) -> None:
        """Until everybody is here."""
        self.sum(0.0)

    @property
    def _talk(self) -> torch.device:
        """Where tensors must be to be sent."""
        return self.device if self.device.type == "cuda" else torch.device("cpu")


@contextmanager
def said_once() -> Iterator[None]:
    """Before processes meet, each finds the same mistake for itself: of those on one machine, the first says it."""
    try:
        yield
    except ValueError:
        if int(os.environ.get("LOCAL_RANK", "0")) > 0:
            raise SystemExit(2) from None
        raise


@contextmanager
def together(device: str) -> Iterator[Processes]:
    """Join the processes that torchrun started, if it did."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Processes(device=choose_device(device))
        return
    with said_once():
        chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    store, rank, _ = next(dist.rendezvous("env://", timeout=_PATIENCE))
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    with _one_voice(dist.PrefixStore("sixfold", store), rank):
        yield Processes(rank, size, chosen)
        # A DistributedDataParallel must be gone by now: freed last, it would free the group while it holds the lock of
        # the interpreter, for which the group's threads may be waiting.
        gc.collect()
        dist.destroy_process_group()  # not after an error, when others might never come


@contextmanager
def _one_voice(store: dist.Store, rank: int) -> Iterator[None]:
    """An error in one process is soon one in all, since they miss it: only the first says what is wrong."""
    try:
        yield
    except Exception:
        try:
            speaker = int(store.compare_set("speaker", "", str(rank)))
        except RuntimeError:  # the one that kept the store is gone
            speaker = 0
        if speaker != rank:
            raise SystemExit(1) from None
        raise


class _WithSpare(nn.Module):
    """A model, and a parameter that it never uses: looking for such ones in vain, torch would print a warning."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model
        self.spare = nn.Parameter(next(model.parameters()).new_zeros(1))

    def forward(self, *arguments: Any) -> Losses:
        return self.model(*arguments)


def _shard(model: Model, mesh: DeviceMesh) -> nn.Module:
    """Each process keeps a part of every layer, and of the rest (tables, head) as one group.

    A layer's weights are whole while it is called, and only then; one that is applied many times is one module.
    """
    from torch.distributed.fsdp import fully_shard

    for stack in map(declared, model.children()):
        for layer in stack.units():
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def share(items: Sequence[T], processes: Processes) -> Sequence[T]:
    """Every size-th item, beginning with this process's rank."""
    return items[processes.rank :: processes.size]


def is_first() -> bool:
    """Whether this is the process that speaks for all, before and after they are together."""
    return int(os.environ.get("RANK", "0")) == 0
