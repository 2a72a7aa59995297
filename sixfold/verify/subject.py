"""The run to be verified. It is only read; files are written to a scratch directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from sixfold.api.describe import who_writes
from sixfold.config.schema import Config
from sixfold.core.device import choose_device
from sixfold.core.parts import declared
from sixfold.decoding.session import check_sizes
from sixfold.models.model import Model
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.tasks.task import Task, task_of, usual_task
from sixfold.text.corpus import Prepared, open_prepared
from sixfold.text.preparation import Reference
from sixfold.text.sources import Split
from sixfold.text.tokenizer import Tokenizers
from sixfold.training import checkpoint

_LARGE = 20_000_000  # parameters above which samples are fewer and shorter, so that verifying takes minutes
_POOL = 2000  # texts from which the samples are drawn


class NotApplicable(Exception):  # noqa: N818  (not an error)
    """Why an equality does not apply to a run."""


class SampleText(NamedTuple):
    """A text of the run, truncated to save time."""

    source: list[int]  # without EOS; empty if the model has one stack
    target: list[int]
    text: str  # the input to decode: the source, or the first half of the target


class VerifiedRun:
    """A run whose files are opened when first needed.

    If a file can't be opened, equalities that need it do not apply; the equality of that file fails.
    """

    def __init__(self, directory: str | Path, scratch: Path, device: str = "auto", imports: Sequence[str | Path] = ()):
        self.run, self.scratch, self.imports = Run(directory), scratch, tuple(map(str, imports))
        _need(self.run)
        self.device = choose_device(device)
        self.config: Config = self.run.read_config() if self.run.exists() else Config()
        self.one_batch: dict[str, Tensor] | None = None  # the gradient of one step, once computed

    @property
    def directory(self) -> Path:
        return self.run.directory

    @cached_property
    def model(self) -> Model:
        try:
            return model_files.load(self.directory, device=self.device)
        except ValueError:
            raise NotApplicable("the model can't be read") from None

    @cached_property
    def task(self) -> Task:
        """The task that the model was trained for."""
        return task_of(self.config) if self.run.exists() else usual_task(self.model.kind, self.model.sizes.classes)

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """The run's tokenizers, if their sizes fit the model."""
        try:
            found = Tokenizers.load(self.directory)
        except ValueError:
            raise NotApplicable("the tokenizers can't be read") from None
        if misfit := misfits(found, self.model):
            raise NotApplicable(misfit)
        return found

    @cached_property
    def prepared(self) -> Prepared:
        """The text that the run was trained on."""
        try:
            return open_prepared(self.run.data, self.tokenizers)
        except ValueError as error:
            raise NotApplicable(f"it needs the run's text: {error}") from None

    @cached_property
    def checkpoint(self) -> checkpoint.Checkpoint:
        """The last undamaged one."""
        if not self.run.exists():
            raise NotApplicable("this is a model, not a run that can be resumed")
        for found in checkpoint.latest(self.run.training):
            if isinstance(found, checkpoint.Checkpoint):
                return found
        raise NotApplicable(f"there is no checkpoint to resume from in {self.run.training}")

    @cached_property
    def samples(self) -> list[SampleText]:
        """Some texts of the run, from the first that exists: validation, test or training text."""
        pairs = list(islice(self._texts(), _POOL))
        number = 8 if self.large else 24
        chosen = pairs[:: max(1, len(pairs) // number)][:number]
        found = [self._sample(source, target) for source, target in chosen]
        found = [sample for sample in found if sample.text.strip() and sample.target]
        if not found:
            raise NotApplicable("it needs the run's text, but neither the prepared text nor its files exist")
        return found

    @cached_property
    def large(self) -> bool:
        return sum(p.numel() for p in self.model.parameters()) > _LARGE

    @property
    def length(self) -> int:
        """Most tokens of a sample, on either side."""
        wanted = 24 if self.large else 48
        return max(1, min([wanted, *(limit - 1 for limit in self.model.limits.values())]))

    def _sample(self, source: str, target: str) -> SampleText:
        ids = self.tokenizers.target.encode(target)[: self.length]
        if not self.model.reads_source:
            return SampleText([], ids, self.tokenizers.target.decode(ids[: (len(ids) + 1) // 2]))
        read = self.tokenizers.source.encode(source)[: self.length]
        return SampleText(read, ids, self.tokenizers.source.decode(read))

    def _texts(self) -> Iterator[tuple[str, str]]:
        """Pairs of source and target; the source is empty for a language model."""
        try:
            prepared = self.prepared
        except NotApplicable:
            yield from chain.from_iterable(self._from_files(split) for split in ("valid", "test"))
            return
        if prepared.references:
            yield from map(self._pair, prepared.references)
            return
        examples = prepared.train if prepared.valid is None else prepared.valid
        for row in range(min(_POOL, len(examples))):
            source = "" if examples.source is None else self.tokenizers.source.decode(examples.source[row])
            yield source, self.tokenizers.target.decode(examples.target[row])

    def _pair(self, reference: Reference) -> tuple[str, str]:
        """The pair of a reference. A classifier reads one text; its label is not text, so the source is empty."""
        return ("", reference.source) if self.task.form.has_labels else (reference.source, reference.targets[0])

    def _from_files(self, split: Split) -> Iterator[tuple[str, str]]:
        """Pairs from the files that the configuration names, if they exist."""
        data = self.config.data
        try:
            if self.task.answers is not None:
                yield from map(self._pair, self.task.form.references(data, split))
            else:
                for source in self.task.form.sources(data, split):
                    yield from (("", text) for text, _ in source.read())
        except (ValueError, OSError):
            return

    def batch_dependent(self) -> str:
        """The parts that declare it, as "Switch in encoder.layers.1.feed_forward, …"; empty if there are none."""
        found: dict[str, list[str]] = {}
        for name, part in self.model.named_modules():
            if declared(part).batch_dependent:
                found.setdefault(type(part).__name__, []).append(name)
        return "; ".join(f"{kind} in {', '.join(names)}" for kind, names in found.items())


def misfits(tokenizers: Tokenizers, model: Model) -> str:
    """The error in the sizes of the tokenizers; empty if they fit the model."""
    try:
        check_sizes(model, tokenizers.source, "source", "encoder")
        check_sizes(model, tokenizers.target, "target", "decoder")
    except ValueError as error:
        return str(error)
    return ""


def _need(run: Run) -> None:
    """Raise a ValueError unless this is a run or a model that can be verified now."""
    if not run.directory.is_dir():
        raise ValueError(f"there is no directory {run.directory}")
    if not (run.directory / model_files.DESCRIPTION).is_file():
        if run.exists():
            raise ValueError(f"{run.directory} has no model yet: its training has not begun")
        raise ValueError(
            f"{run.directory} is neither a run nor a model: "
            f"it has no {run.config.name} and no {model_files.DESCRIPTION}"
        )
    writer = who_writes(run)
    if writer is not None:
        raise ValueError(f"{run.directory} is being written by {writer}; wait for it or stop it, then verify")
