"""The base of Translator and Generator: models, tokenizers, a configuration, and streams of lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch

from sixfold.config.schema import Decoding, change_decoding
from sixfold.decoding.looking import Looking
from sixfold.decoding.ordered import FIRST, WINDOW, Lines
from sixfold.decoding.owned_models import OwnedModels
from sixfold.decoding.records import Translation
from sixfold.decoding.session import DecodingSession, RunOrigin, check_demands, check_models, check_sizes
from sixfold.decoding.workers import WorkerPool
from sixfold.models.model import Model
from sixfold.text.tokenizer import Tokenizers

AnyModel = TypeVar("AnyModel", bound=Model)
AnySession = TypeVar("AnySession", bound=DecodingSession)


class Front(Generic[AnyModel, AnySession]):
    """The object behind the command line, Python and validation."""

    verb: ClassVar[str]  # of the command line
    kind: ClassVar[type[Model]]
    can: ClassVar[str]  # in the error for a model of another kind: "only models of kind K …"
    sides: ClassVar[dict[str, str]]  # tokenizer → the stack whose vocabulary it must have
    stack: ClassVar[str]  # the stack that writes

    def __init__(
        self,
        model: AnyModel | Sequence[AnyModel],
        tokenizers: Tokenizers,
        decoding: Decoding | None = None,
        *,
        origin: RunOrigin | None = None,
    ):
        models: Sequence[AnyModel] = [model] if isinstance(model, torch.nn.Module) else model
        self.owned = OwnedModels(models)
        self.tokenizers, self.decoding, self.origin = tokenizers, decoding or Decoding(), origin
        check_models(self.models, self.kind, self.can)
        for each in self.models:
            for side, stack in self.sides.items():
                check_sizes(each, getattr(tokenizers, side), side, stack)

    @property
    def models(self) -> tuple[AnyModel, ...]:
        return self.owned.models

    @property
    def model(self) -> AnyModel:
        """The first model; most have no other."""
        return self.models[0]

    def changed(self) -> None:
        """Must be called after a change of the models that torch does not count; see `owned_models`."""
        self.owned.changed()

    def session(self, *, terms: Sequence[str] = (), **options: Any) -> AnySession:
        """Turns lines into jobs, and has engines that run them.

        `terms` must occur in every output. Other options are fields of `Looking`, or keys of the section `decoding`.
        """
        looking, changes = Looking.among(options)
        looking.check(len(self.models))
        return self._session(self.configured(changes), looking, terms)

    def _session(self, decoding: Decoding, looking: Looking, terms: Sequence[str]) -> AnySession:
        raise NotImplementedError

    def configured(self, changes: dict[str, Any]) -> Decoding:
        """The configuration of one call."""
        return change_decoding(self.decoding, changes)

    def pool(self, workers: int, *, terms: Sequence[str] = (), **options: Any) -> WorkerPool:
        """Worker processes in the place of a session; its options are those of `session`."""
        looking, changes = Looking.among(options)
        looking.check(len(self.models), workers)
        decoding = self.configured(changes)
        check_demands(self.models, self.tokenizers.target, decoding, self.stack, terms)
        return WorkerPool(self.origin, decoding, workers, terms=terms, alignment=looking.alignment)

    def _stream(
        self,
        lines: Lines,
        *,
        stop: Callable[[], bool] | None = None,
        wait: Callable[[], None] | None = None,
        workers: int = 0,
        window: int = WINDOW,
        first: int = FIRST,
        start: int = 1,
        **options: Any,
    ) -> Iterator[Translation]:
        """Errors that concern all lines are raised before a line is read."""
        session = self.pool(workers, **options) if workers else self.session(**options)
        window, first = max(workers, 1) * window, max(workers, 1) * first
        return session.closing(session.stream(lines, window=window, first=first, start=start, stop=stop, wait=wait))
