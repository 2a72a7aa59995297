"""Equalities of files: weights, checkpoints, tokenizers and prepared text are unchanged on disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from sixfold.disk.reading import read_json
from sixfold.runs import model_files
from sixfold.text.corpus import INDEX, OtherTokenizersError, open_prepared
from sixfold.text.tokenizer import Tokenizers
from sixfold.training import checkpoint
from sixfold.training.average import make_average
from sixfold.training.processes import Processes
from sixfold.verify.equality import Measured, equality
from sixfold.verify.subject import NotApplicable, VerifiedRun, misfits


@equality(
    "weights",
    "saved = loaded",
    left="the weights as loaded",
    right="saved and loaded again",
    tolerance=0.0,
)
def weights(subject: VerifiedRun) -> Measured:
    """Compare bit for bit, also with the checkpoint of the best step, if it was kept."""
    model = model_files.load(subject.directory)
    loaded = model.state_dict()
    path = subject.scratch / "saved"
    model_files.save(model, path)
    again = furthest(loaded, model_files.load(path).state_dict())
    best = _best_checkpoint(subject)
    if best is None:
        return Measured(again, "no checkpoint of this step is left to compare with")
    average = make_average(subject.config.training, subject.run, Processes())
    difference = furthest(loaded, average.handed_out(best))
    note = f"{model_files.WEIGHTS} differs from {best.path.name}" if difference else ""
    right = f"saved and loaded again, and those of {best.path.name}"
    return Measured(max(again, difference), note, right=right)


def _best_checkpoint(subject: VerifiedRun) -> checkpoint.Checkpoint | None:
    """The checkpoint that the run's model was made from, if it exists and is undamaged."""
    try:
        last = subject.checkpoint
        progress = last.state["progress"]
        step = last.step if progress["best"] is None else progress["best_step"]
        return checkpoint.read(subject.run.training / f"step-{step}")
    except (NotApplicable, checkpoint.DamagedError):
        return None


@equality(
    "checkpoints",
    "checkpoints as written",
    left="the files of the checkpoints",
    right="their hashes when they were written",
    tolerance=0.0,
)
def checkpoints(subject: VerifiedRun) -> Measured:
    """Check all checkpoints; the error names the first damaged one."""
    checkpoints = checkpoint.checkpoints_in(subject.run.training)
    if not checkpoints:
        raise NotApplicable("no checkpoints are kept")
    for path in checkpoints:
        checkpoint.read(path)
    number = f"{len(checkpoints)} checkpoint{'s' if len(checkpoints) > 1 else ''}"
    return Measured(0.0, left=f"the files of {number}")


@equality(
    "tokenizers",
    "same tokenizers",
    left="the tokenizers' fingerprints",
    right="those recorded with the text and in the checkpoints",
    tolerance=0.0,
)
def tokenizers(subject: VerifiedRun) -> Measured:
    found = Tokenizers.load(subject.directory)
    if misfit := misfits(found, model_files.skeleton(subject.directory)):
        raise ValueError(misfit)
    path = subject.scratch / "tokenizers"
    path.mkdir()
    found.save(path)
    mine = _fingerprints(found)
    records = list(_recorded(subject))
    for where, fingerprints in [("saved and loaded again", _fingerprints(Tokenizers.load(path))), *records]:
        if fingerprints != mine:
            return Measured(math.inf, f"another tokenizer than in {where}")
    if not records:
        return Measured(0.0, "no record to compare with: their sizes fit", right="saved and loaded again")
    return Measured(0.0)


@equality(
    "text",
    "prepared text as written",
    left="the files of the prepared text",
    right="the record made when they were written",
    tolerance=0.0,
)
def text(subject: VerifiedRun) -> Measured:
    if not (subject.run.data / INDEX).is_file():
        raise NotApplicable("no prepared text is kept")
    try:
        open_prepared(subject.run.data, subject.tokenizers)
    except OtherTokenizersError as error:
        raise NotApplicable(str(error)) from None
    return Measured(0.0)


def _fingerprints(found: Tokenizers) -> list[str]:
    return [tokenizer.fingerprint for tokenizer in found]


def _recorded(subject: VerifiedRun) -> Iterator[tuple[Path, list[str]]]:
    """Paths at which a run recorded its tokenizers, and the fingerprints there."""
    for state in checkpoint.states(subject.run.training):
        if "data" in state:
            yield subject.run.training / f"step-{state['step']}", state["data"]["tokenizers"]
    path = subject.run.data / INDEX
    if path.is_file():
        try:
            yield path, read_json(path)["tokenizers"]
        except (ValueError, KeyError, TypeError):
            return  # the equality "text" reports the damage


def furthest(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """The largest difference of two numbers at the same index; ∞ if names, shapes or dtypes differ, or one is NaN."""
    if left.keys() != right.keys() or any(left[name].shape != right[name].shape for name in left):
        return math.inf
    apart = [_apart(left[name], right[name]) for name in left if left[name].numel()]
    return max(apart, default=0.0)


def _apart(left: Tensor, right: Tensor) -> float:
    if left.dtype != right.dtype or not bool(torch.isfinite(left).all()):
        return math.inf
    if torch.equal(left, right):
        return 0.0
    found = float((left.double() - right.double()).abs().max())
    return found if found == found else math.inf
