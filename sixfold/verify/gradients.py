"""The gradient of one training step of a run, from one batch, from micro-batches, or from two processes.

It is computed in float64, so that the order of sums hardly matters, and in evaluation mode, where nothing is random: no
dropout, and experts have unlimited capacity.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sixfold.config.schema import Config
from sixfold.core.batch import Batch, Term
from sixfold.core.ids import PAD
from sixfold.core.parts import declared
from sixfold.core.sharded_tensors import whole
from sixfold.disk.atomic import save_tensors
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.spec.registry import import_file
from sixfold.text.arrays import Ragged, RowRange
from sixfold.text.corpus import Prepared, open_prepared
from sixfold.text.tokenizer import Tokenizers
from sixfold.training import checkpoint
from sixfold.training.make_trainer import build_model, make_trainer
from sixfold.training.processes import Processes, together
from sixfold.training.trainer import Trainer

PIECES = 4
LOSS = "the loss"  # the key of the loss, among those of the gradients; no parameter has this name
_TOKENS = 1024  # most tokens of the step
_ROWS = 512  # rows of the text from which the step is taken
FOUND = "gradients.safetensors"


def gradients(
    run: Run, scratch: Path, processes: Processes | None = None, *, pieces: int = 1, merge: bool = False
) -> dict[str, Tensor]:
    """The gradients and the loss of one step of a run's model on its text; `merge` joins the step into one batch."""
    with _exactly():
        trainer = _trainer(run, scratch, processes or Processes(), pieces)
        batches = [trainer.ready(batch) for batch in trainer.batches.next(trainer.mine)]
        batches = [merged(batches)] if merge else batches
        loss = trainer.backward(batches, trainer.count(batches))[trainer.parts.main]
        found = {name: whole(p.grad).clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
    return {**found, LOSS: torch.tensor([loss], dtype=torch.float64)}


@contextmanager
def _exactly() -> Iterator[None]:
    """Build models in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng():
            yield
    finally:
        torch.set_default_dtype(before)


def _trainer(run: Run, scratch: Path, processes: Processes, pieces: int) -> Trainer:
    """A trainer of the run's model that reads the first rows of its text and writes nothing."""
    prepared = open_prepared(run.data, Tokenizers.load(run.directory))
    config = _config(run, pieces)
    model = build_model(config, prepared, processes)
    checkpoint.load_weights(model, model_files.load(run.directory).state_dict())
    trainer = make_trainer(Run(scratch), config, _few(prepared), processes, model=model)
    trainer.model.eval()
    if any(declared(part).batch_dependent for part in trainer.model.modules()):
        trainer.model.register_forward_hook(_without_auxiliary)
    return trainer


def _config(run: Run, pieces: int) -> Config:
    config = run.read_config()
    training = {
        "batch_tokens": min(config.training.batch_tokens, _TOKENS),
        "accumulate": pieces,
        "steps": config.training.steps or 1,
        "minutes": None,
        "plan": None,
        "optimizer": "sgd",  # makes no step here; it supports every way of sharding weights
        "average": None,
        "precision": "float32",  # no autocast: the precision of the weights
        "compile": False,
        "device": "cpu",
    }
    return config.model_copy(update={"training": config.training.model_copy(update=training)})


def _without_auxiliary(model: Any, arguments: Any, terms: dict[str, Term] | Batch) -> dict[str, Term] | Batch:
    """Drop auxiliary losses, which are means over the batch. A task's `before` gives a batch instead of terms."""
    if isinstance(terms, Batch):
        return terms
    return {name: Term(term.sum * 0, term.shown) if name == "auxiliary" else term for name, term in terms.items()}


def _few(prepared: Prepared) -> Prepared:
    """The first rows only: planning an epoch of all rows may take long."""
    rows = min(_ROWS, len(prepared.train))

    def cut(side: Ragged) -> Ragged:
        return Ragged(side.ids, side.offsets[: rows + 1])

    train = prepared.train
    source = None if train.source is None else cut(train.source)
    few = replace(train, source=source, target=cut(train.target), groups=(RowRange(rows, 1.0),))
    return replace(prepared, train=few)


def merged(batches: Sequence[Batch]) -> Batch:
    """All rows in one batch, padded with PAD."""

    def join(tensors: Sequence[Tensor]) -> Tensor:
        if tensors[0].dim() == 1:
            return torch.cat(list(tensors))
        longest = max(tensor.shape[1] for tensor in tensors)
        return torch.cat([pad(tensor, (0, longest - tensor.shape[1]), value=PAD) for tensor in tensors])

    counts = {name: sum(batch.counts[name] for batch in batches) for name in batches[0].counts}
    return Batch(counts=counts, **{name: join([b.fields[name] for b in batches]) for name in batches[0].fields})


def main(run: str, scratch: str, *imports: str) -> None:
    """One of two processes, started as torchrun would; the first one writes their gradients to a file."""
    for file in imports:
        import_file(Path(file))
    with together("cpu") as processes:
        found = gradients(Run(run), Path(scratch), processes)
        if processes.first:
            save_tensors(found, Path(scratch) / FOUND)
        processes.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
