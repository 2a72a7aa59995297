"""What Translator and Generator share: models, tokenizers, a configuration, and streams of lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch

from sixfold.config.schema import Decoding, change_decoding
from sixfold.core.tap import Tap
from sixfold.decoding.cpu.int8 import fingerprint, same
from sixfold.decoding.looking import Looking
from sixfold.decoding.ordered import FIRST, WINDOW, Lines, OrderedStream
from sixfold.decoding.records import Translation
from sixfold.decoding.session import RunOrigin, check_demands, check_models, check_sizes
from sixfold.decoding.workers import in_processes
from sixfold.models.model import Gates, Model, evaluating
from sixfold.text.tokenizer import Tokenizers

AnyModel = TypeVar("AnyModel", bound=Model)


class Front(Generic[AnyModel]):
    """One object behind the command line, Python and validation."""

    verb: ClassVar[str]  # by which the command line asks it
    kind: ClassVar[type[Model]]
    can: ClassVar[str]  # what only models of this kind do
    sides: ClassVar[dict[str, str]]  # the tokenizers, and the stacks that they are for
    stack: ClassVar[str]  # that writes

    def __init__(
        self,
        model: AnyModel | Sequence[AnyModel],
        tokenizers: Tokenizers,
        decoding: Decoding | None = None,
        *,
        origin: RunOrigin | None = None,
    ):
        self.models: tuple[AnyModel, ...] = (model,) if isinstance(model, torch.nn.Module) else tuple(model)
        self.tokenizers, self.decoding, self.origin = tokenizers, decoding or Decoding(), origin
        self._kept: list[tuple[Any, Any]] = []  # the last session, and what it is for: it takes a while to make
        check_models(self.models, self.kind, self.can)
        for each in self.models:
            for side, stack in self.sides.items():
                check_sizes(each, getattr(tokenizers, side), side, stack)

    @property
    def model(self) -> AnyModel:
        """The first, and mostly the only one."""
        return self.models[0]

    def session(
        self, *, tap: Tap | None = None, gates: Gates | None = None, trace: bool = False, **changes: Any
    ) -> Any:
        """What turns lines into jobs, and has engines for them. `changes` are keys of the section `decoding`."""
        looking = Looking(tap, gates, trace)
        looking.check(len(self.models), workers=0)
        return self._session(self.changed(changes), looking)

    def _session(self, decoding: Decoding, looking: Looking, *extras: Any) -> Any:
        raise NotImplementedError

    def changed(self, changes: dict[str, Any]) -> Decoding:
        """The configuration of one call."""
        return change_decoding(self.decoding, changes)

    def _stream(
        self,
        lines: Lines,
        extras: Sequence[Any] = (),
        *,
        stop: Callable[[], bool] | None = None,
        wait: Callable[[], None] | None = None,
        workers: int = 0,
        window: int = WINDOW,
        first: int = FIRST,
        start: int = 1,
        alignment: bool = False,
        tap: Tap | None = None,
        gates: Gates | None = None,
        trace: bool = False,
        **changes: Any,
    ) -> Iterator[Translation]:
        """Mistakes that concern all lines are raised before one is read."""
        decoding, looking = self.changed(changes), Looking(tap, gates, trace)
        looking.check(len(self.models), workers)
        how: dict[str, Any] = {"window": window, "first": first, "start": start, "stop": stop, "wait": wait}
        if workers:
            check_demands(self.models, self.tokenizers.target, decoding, self.stack)
            return in_processes(self.origin, decoding, lines, workers, alignment=alignment, **how)
        key = self._key(decoding, [looking, *extras])
        session = self._take(key) or self._session(decoding, looking, *extras)
        return self._evaluated(OrderedStream(session, lines, **how), key, session)

    def _evaluated(self, stream: OrderedStream[Translation], key: Any, session: Any) -> Iterator[Translation]:
        with evaluating(*self.models):
            yield from stream
        if key is not None:
            self._kept[:] = [(key, session)]

    def _key(self, decoding: Decoding, extras: Sequence[Any]) -> Any:
        """What a session is for, if it may be used again: by one at a time, as long as the models are the same."""
        if any(next(model.parameters()).device.type != "cpu" for model in self.models):
            return None
        return decoding, extras, self.tokenizers, [fingerprint(model) for model in self.models]

    def _take(self, key: Any) -> Any:
        try:
            was_for, session = self._kept.pop()
        except IndexError:
            return None
        return session if same(was_for, key) else None
