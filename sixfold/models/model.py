"""The three models: encoder-decoder, decoder-only, encoder-only.

Training calls `forward(batch, losses)`: it computes a task's losses inside the module, so that DDP and FSDP see every
parameter. All other code calls `encode` and `decode`. Inputs are checked here, where they enter, and nowhere inside.

Letters: S source rows, n source length, B target rows, L target length, D model width, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from sixfold.core.batch import Batch, Losses, Term
from sixfold.core.call import Call
from sixfold.core.drawing import begin as begin_weights
from sixfold.core.inputs import (
    begin,
    check_features,
    check_gates,
    check_ids,
    check_real,
    check_smoothing,
    check_tap,
    check_targets,
)
from sixfold.core.loss import Scored, chunked_loss, divergence, scored_only
from sixfold.core.parts import Map, declared
from sixfold.core.place import Place
from sixfold.spec.assemble import Assembly
from sixfold.spec.spec import Group, Spec

Features = Mapping[str, Tensor]  # attributes of tokens besides their ids, (B, L) each: `call.features`
Gates = Mapping[str, Tensor]  # "decoder.3.cross" → (B or 1, H), a factor for each head


_NOTHING: Mapping[str, Tensor] = MappingProxyType({})


class Reading(NamedTuple):
    """The result of a pass over a batch, from which losses are computed."""

    x: Tensor  # (B, L, D): the states that predict
    real: Tensor | None  # (B, L): which of them are not padding; None if all are
    auxiliary: list[Tensor]  # auxiliary losses of parts, such as the balance of experts
    measures: Mapping[str, Tensor] = _NOTHING  # name → sums that parts measured, such as the load of each expert

    def auxiliary_terms(self, count: Tensor) -> dict[str, Term]:
        """The auxiliary losses as a term of a task: `{"words": …, **reading.auxiliary_terms(words.tokens)}`.

        They are means. Times `count`, the number of scored targets of the main term, they become a sum. Without
        auxiliary losses there is no term. What parts measured are terms with nothing to minimise.
        """
        measured = {name: Term(values.new_zeros(()), values) for name, values in self.measures.items()}
        if not self.auxiliary:
            return measured
        total = torch.stack(self.auxiliary).sum() * count
        return {"auxiliary": Term(total, total.detach()), **measured}


class Model(nn.Module):
    """The base of the three models: tables, head, and the methods that a trainer calls."""

    kind: ClassVar[str]
    reads_source: ClassVar[bool]  # whether `encode` returns a memory that `decode` reads
    writes_text: ClassVar[bool]  # whether `decode` predicts the next word
    stacks: ClassVar[tuple[str, ...]]  # "encoder", "decoder": the sizes NAME_layers that apply
    assembly: Assembly  # its sizes, modifications and spec
    head: Any

    def __init__(self, spec: Spec):
        super().__init__()
        if spec.sizes.classes and self.kind != "encoder_only":
            raise ValueError(f"classes are for an encoder_only model, got {spec.sizes.classes} for {self.kind}")
        self.sizes = spec.sizes
        self._init, self._groups, self._after_step = spec.init, spec.groups, spec.after_step

    def _register_tables(self, roles: Mapping[str, nn.Module]) -> None:
        """Register each table once, however many roles it has."""
        self.tables = nn.ModuleList(dict.fromkeys(roles.values()))
        self._table = dict(roles)  # not registered: a module must not be listed twice

    @property
    def roles(self) -> Mapping[str, Any]:
        """The table that serves each role: "source", "target", "output"; one may serve several."""
        return self._table

    def _draw_weights(self, spec: Spec) -> None:
        """The last step of a constructor: draw the weights, and collect the declarations of all parts."""
        begin_weights(self, partial(self._init, self, spec))
        self.limits: dict[str, int] = {}  # stack → its largest number of positions, if a part sets a limit
        self.attentions: dict[str, int] = {}  # "decoder.3.cross" → number of heads, which gates can scale
        self.maps: dict[str, Map] = {}  # "decoder.3.cross" → the kind of map that a tap sees there
        for part in map(declared, self.modules()):
            part.after_drawing()
            place, limit = part.place, part.limit
            if place is None:
                continue
            if limit is not None:
                self.limits[place.stack] = min(limit, self.limits.get(place.stack, limit))
            names = [f"{place.stack}.{i}.{place.name}" for i in range(place.layers)]
            self.attentions.update({name: part.heads for name in names if part.heads})
            self.maps.update({name: part.map for name in names if part.map != "none"})

    def groups(self) -> list[Group]:
        """The parameters in groups for the optimiser."""
        return self._groups(self)

    def after_step(self, step: int, steps: int) -> None:
        """Must be called after each optimiser step."""
        self._after_step(self, step, steps)

    def forward(self, batch: Batch, losses: Callable[..., Any] | None = None, **options: Any) -> Any:
        """The value of `losses(model, batch)`; by default the sums over the words, or the classes, as `Losses`."""
        return (losses or usual_losses)(self, batch, **options)

    def read(self, batch: Batch, *, recompute: bool = False) -> Reading:
        """One pass over a batch."""
        raise NotImplementedError

    def score(self, reading: Reading, batch: Batch, smoothing: float) -> Scored:
        """The loss of this model's predictions: words, or classes."""
        raise NotImplementedError

    def score_words(self, x: Tensor, batch: Batch, smoothing: float) -> Scored:
        """The loss of one word per state, each times its weight if the batch has `weights`."""
        targets, weights = batch.targets, batch.get("weights")
        check_smoothing(smoothing)
        check_targets(targets, x, self.sizes.vocabulary("decoder"))
        x, targets, weights = scored_only(x, targets, weights)
        weighted = {} if weights is None else {"weights": weights}  # a user's own head may not take weights
        return Scored(*self.head.loss(x, self._table["output"], targets, smoothing, **weighted))

    def divergence(self, x: Tensor, other: Tensor, batch: Batch) -> Tensor:
        """How far the words predicted from two states (B, L, D) each are apart: see core/loss.py."""
        pair, targets, weights = scored_only(torch.cat([x, other], -1), batch.targets, batch.get("weights"))

        def apart(pair_ND: Tensor, _: Tensor, weights_N: Tensor) -> tuple[Tensor, Tensor]:
            one, two = map(self.log_probs, pair_ND.chunk(2, -1))
            found = divergence(one, two, weights_N)
            return found, found.detach()

        parameters = dict.fromkeys([*self.head.parameters(), *self._table["output"].parameters()])
        return chunked_loss(apart, pair, targets, list(parameters), weights=weights).sum

    def log_probs(self, x: Tensor) -> Tensor:
        """States (…, D) → the log-probability of every word (…, V)."""
        if "output" not in self._table:
            raise ValueError("this model predicts classes, not words: use classify")
        return self.head.log_probs(x, self._table["output"])

    def _enter(
        self, entrance: nn.Module, place: Place, role: str, ids: Tensor, real: Tensor | None, **rest: Any
    ) -> tuple[Tensor, Call]:
        """Check the inputs and embed them."""
        check_ids(ids, self.sizes.vocabulary(place.stack), f"the {role} ids")
        check_real(real, ids, f"the {role} ids")
        check_features(rest.get("features"), ids, f"the {role} ids")
        check_gates(rest.get("gates"), self.attentions, ids.shape[0])
        check_tap(rest.get("tap"))
        call = begin(ids, real, causal=place.causal, limit=self.limits.get(place.stack), **rest)
        return entrance(ids, self._table[role], call)


def new_sinks() -> dict[str, Any]:
    """The fields of a `Call` in which the parts of one pass leave losses and measures, in the order of a `Reading`."""
    return {"losses": list[Tensor](), "measures": dict[str, Tensor]()}


def usual_losses(model: Model, batch: Batch, smoothing: float = 0.0, recompute: bool = False) -> Losses:
    """The sums over the words, or the classes, of a batch."""
    reading = model.read(batch, recompute=recompute)
    scored = model.score(reading, batch, smoothing)
    return Losses(scored.sum, scored.tokens, total_of(reading.auxiliary, scored.sum), scored.plain)


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Put models in evaluation mode; afterwards, restore the mode of each of their parts."""
    in_training = [part for model in models for part in model.modules() if part.training]
    for part in in_training:
        part.training = False
    try:
        yield
    finally:
        for part in in_training:
            part.training = True


def one_vocabulary(spec: Spec) -> dict[str, nn.Module]:
    """The tables of a model that reads and writes one language."""
    if not spec.sizes.joint:
        raise ValueError("a model with one stack has one vocabulary: give vocab, not source_vocab and target_vocab")
    tables = spec.tables(spec)
    return {"target": tables.target, "output": tables.output}


def total_of(auxiliary: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(auxiliary).sum() if auxiliary else like.new_zeros(())
