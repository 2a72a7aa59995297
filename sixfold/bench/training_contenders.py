"""The contenders of training.py: each makes training steps on the same batches with the same optimiser."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sixfold.bench.peer_models import absence, hugging_face, marian, x_pair, x_stack
from sixfold.bench.race import OURS, SEED, Contender
from sixfold.bench.subject import BenchSubject
from sixfold.config.schema import Config, Training
from sixfold.core.batch import Batch
from sixfold.core.device import autocast, be_deterministic
from sixfold.core.ids import PAD
from sixfold.runs.run import Run
from sixfold.spec.spec import Group
from sixfold.training import checkpoint
from sixfold.training.make_trainer import build_model, make_trainer
from sixfold.training.optimizer import make_optimizers
from sixfold.training.processes import Processes
from sixfold.training.schedule import rate

MicroBatches = Sequence[Batch]  # the micro-batches of one optimiser step
Logits = Callable[[Batch], Tensor]  # (rows, length, words)


class TrainingContender(NamedTuple):
    contender: Contender
    same: str  # "weights" or "sizes": what it has in common with the measured model


class Replay:
    """Yields the same batches again and again, in place of those of a trainer."""

    def __init__(self, steps: Sequence[MicroBatches]):
        self.steps, self.padding, self.epoch, self._given = steps, 0.0, 0, 0

    def next(self, which: Iterable[int] | None = None) -> list[Batch]:
        self._given += 1
        return list(self.steps[(self._given - 1) % len(self.steps)])

    def state(self) -> dict[str, Any]:
        return {"given": self._given}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._given = state["given"]


def tokens(steps: Sequence[MicroBatches]) -> int:
    """The number of scored target tokens."""
    return sum(next(iter(batch.counts.values())) for step in steps for batch in step)


def ours(subject: BenchSubject, steps: Sequence[MicroBatches]) -> TrainingContender:
    """The step of `sixfold train`: loss, gradients, clipping, guard, optimiser; only the log is not written."""
    config = _unlogged(subject.config)
    with tempfile.TemporaryDirectory(prefix="sixfold-bench-") as folder:  # a trainer writes only at checkpoints
        processes = Processes()
        model = build_model(config, subject.prepared, processes)
        checkpoint.load_weights(model, subject.model.state_dict())
        trainer = make_trainer(Run(folder), config, subject.prepared, processes, model=model, batches=Replay(steps))
    trainer.model.train()

    def step() -> float:
        before = trainer.progress.loss, trainer.progress.scored
        with _deterministic(config.training.deterministic):
            for _ in steps:
                trainer.step()
        return (trainer.progress.loss - before[0]) / max(1.0, trainer.progress.scored - before[1])

    return TrainingContender(Contender(OURS, step, _size(trainer.model)), "weights")


def _unlogged(config: Config) -> Config:
    training = config.training.model_copy(update={"log_every": 1 << 30, "average": None, "device": "cpu"})
    return config.model_copy(update={"training": training})


@contextmanager
def _deterministic(yes: bool) -> Iterator[None]:
    """Set determinism as `sixfold train` does; the other contenders use torch's default."""
    be_deterministic(yes)
    try:
        yield
    finally:
        be_deterministic(False)


def peer(name: str, subject: BenchSubject, steps: Sequence[MicroBatches]) -> TrainingContender:
    """A peer by name; a ValueError with the reason if it can't take part."""
    if reason := absence(name):
        raise ValueError(reason)
    if name == "ctranslate2":
        raise ValueError("it does not train")
    torch.manual_seed(SEED)
    length = max(
        ids.shape[1] for step in steps for batch in step for ids in (batch.source, batch.inputs) if ids is not None
    )
    model, logits, same = (_transformers if name == "transformers" else _x_transformers)(subject, length)
    return TrainingContender(_contender(name, model, logits, steps, subject.config.training), same)


def _transformers(subject: BenchSubject, length: int) -> tuple[nn.Module, Logits, str]:
    """Hugging Face's model with the same weights; if it lacks a part, Marian with the same sizes."""
    if not subject.model.reads_source:
        raise ValueError(f"this section has no transformers model to compare with {subject.model.kind}")
    try:
        model, same = hugging_face(subject.model, length), "weights"
    except ValueError:
        model, same = marian(subject.model.sizes, length), "sizes"

    def logits(batch: Batch) -> Tensor:
        rest = {"attention_mask": _real(batch.source), "decoder_input_ids": batch.inputs, "use_cache": False}
        return model(input_ids=batch.source, **rest).logits

    return model, logits, same


def _x_transformers(subject: BenchSubject, length: int) -> tuple[nn.Module, Logits, str]:
    """x-transformers with the same sizes; input and output share one table."""
    sizes, writes = subject.model.sizes, subject.model.writes_text
    if subject.model.reads_source:
        encoder, decoder = x_pair(sizes, length)

        def translate(batch: Batch) -> Tensor:
            real = _real(batch.source)
            return decoder(batch.inputs, context=encoder(batch.source, mask=real), context_mask=real)

        return nn.ModuleList([encoder, decoder]), translate, "sizes"
    if sizes.classes:
        raise ValueError("this section does not compare it with classifiers")
    stack = x_stack(sizes, "only" if writes else "reader", length, return_only_embed=True)

    def go_on(batch: Batch) -> Tensor:
        ids = batch.inputs if batch.source is None else batch.source
        mask = None if writes else _real(ids)
        return F.linear(stack(ids, mask=mask), stack.token_emb.emb.weight)

    return stack, go_on, "sizes"


def _real(ids: Tensor) -> Tensor | None:
    """A mask of the real tokens; None without padding, where attention is faster without a mask."""
    real = ids != PAD
    return None if bool(real.all()) else real


class _Grouped(nn.Module):
    """Another library's model with the parameter groups of our optimisers: weight decay applies to matrices only."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.inner = model

    def groups(self) -> list[Group]:
        tables = {id(p) for part in self.modules() if isinstance(part, nn.Embedding) for p in part.parameters()}
        learned = [p for p in self.parameters() if p.requires_grad]
        decays = [p for p in learned if p.dim() >= 2 and id(p) not in tables]
        rest = {id(p) for p in decays}
        return [
            Group("matrices", decays, decay=True),
            Group("rest", [p for p in learned if id(p) not in rest], decay=False),
        ]

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that are trained."""
        return ((name, p) for name, p in super().named_parameters() if p.requires_grad)


def _contender(
    name: str, model: nn.Module, logits: Logits, steps: Sequence[MicroBatches], training: Training
) -> Contender:
    """The timed work: gradients of all micro-batches, clipping, the optimiser step, clearing the gradients."""
    model.train()
    grouped = _Grouped(model)
    optimizers = make_optimizers(grouped, training)  # type: ignore[arg-type]
    parameters = [p for _, p in grouped.named_parameters()]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate(training, 1, training.steps or 1) * group["factor"]

    def step() -> float:
        total = 0.0
        for batches in steps:
            scored = tokens([batches])
            for batch in batches:
                with autocast(torch.device("cpu"), training.precision):
                    loss = _loss(logits(batch), batch.targets, training.label_smoothing)
                (loss / scored).backward()
                total += loss.item()
            torch.nn.utils.clip_grad_norm_(parameters, training.clip or torch.inf)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        return total / tokens(steps)

    return Contender(name, step, _size(grouped))


def _loss(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    flat = logits.flatten(0, 1).float()
    return F.cross_entropy(flat, targets.flatten(), ignore_index=PAD, label_smoothing=smoothing, reduction="sum")


def _size(model: nn.Module) -> int:
    return sum(p.numel() for _, p in model.named_parameters() if p.requires_grad)
