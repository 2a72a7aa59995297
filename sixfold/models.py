"""The three models: encoder-decoder, decoder-only, encoder-only.

`forward(batch)` is what training calls and gives the losses; `encode` and `decode` are for everybody
else. Values are checked here, where data enter, and nowhere inside.

Letters: S source rows, n source length, B target rows, L target length, D model width, V words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from sixfold.assemble import Assembly, assemble
from sixfold.call import Call
from sixfold.decoding.cache import Cache
from sixfold.entry import (
    begin,
    check_classes,
    check_gates,
    check_ids,
    check_memory,
    check_real,
    check_smoothing,
    check_tap,
    check_targets,
    finish,
)
from sixfold.initial import Undrawn, normal
from sixfold.registry import did_you_mean
from sixfold.spec import Group, Place, Sizes, Spec
from sixfold.tap import Tap
from sixfold.training.loss import smoothed_loss
from sixfold.transformer import Input, Memory

Gates = Mapping[str, Tensor]  # "decoder.3.cross" → (B or 1, H), a factor for each head


@dataclass(frozen=True)
class Batch:
    """What a training step reads. Ids; PAD fills up rows, and stands where a target is not scored."""

    source: Any = None  # (S, n): read by an encoder
    inputs: Any = None  # (B, L): read by a decoder
    targets: Any = None  # (B, L): what is right after each input; (S, n) or classes (S,) without a decoder

    def to(self, device: torch.device) -> Batch:
        return Batch(*(None if t is None else t.to(device) for t in (self.source, self.inputs, self.targets)))


class Losses(NamedTuple):
    """Sums, so that micro-batches and processes add up to one batch."""

    sum: Tensor  # Σ −log p over the scored targets
    tokens: Tensor  # how many these are
    auxiliary: Tensor  # what parts add to be minimised, such as the balance of experts
    plain: Tensor  # Σ −log p without smoothing: what is reported; it has no gradient


class Model(nn.Module):
    """What the three have in common: tables, a head, and what a trainer asks for."""

    kind: ClassVar[str]
    assembly: Assembly  # how it was made
    head: Any

    def __init__(self, spec: Spec):
        super().__init__()
        if spec.sizes.classes and self.kind != "encoder_only":
            raise ValueError(f"classes are for an encoder_only model, got {spec.sizes.classes} for {self.kind}")
        self.sizes = spec.sizes
        self._init, self._groups, self._after_step = spec.init, spec.groups, spec.after_step

    def _own(self, roles: Mapping[str, nn.Module]) -> None:
        """Hold each table once, however many roles it has."""
        self.tables = nn.ModuleList(dict.fromkeys(roles.values()))
        self._table = dict(roles)  # not registered: a module must not be listed twice

    def _complete(self, spec: Spec) -> None:
        """After all parts are there."""
        self._init(self, spec)
        self.limits: dict[str, int] = {}  # the most positions a stack can tell apart, where a part sets a limit
        self.attentions: dict[str, int] = {}  # "decoder.3.cross" → heads: what a tap can watch and gates can scale
        for part in self.modules():
            place, limit = getattr(part, "place", None), getattr(part, "limit", None)
            if place is not None and limit is not None:
                self.limits[place.stack] = min(limit, self.limits.get(place.stack, limit))
            heads = getattr(part, "heads", None)
            if place is not None and heads is not None:
                self.attentions.update({f"{place.stack}.{i}.{place.name}": heads for i in range(place.layers)})

    def groups(self) -> list[Group]:
        """The parameters as the optimiser should treat them."""
        return self._groups(self)

    def after_step(self, step: int, steps: int) -> None:
        """To be called after each optimiser step."""
        self._after_step(self, step, steps)

    def log_probs(self, x: Tensor) -> Tensor:
        """States (…, D) → the log-probability of every word (…, V)."""
        if "output" not in self._table:
            raise ValueError("this model says classes, not words: use classify")
        return self.head.log_probs(x, self._table["output"])

    def _enter(
        self, entrance: nn.Module, place: Place, role: str, ids: Tensor, real: Tensor | None, **rest: Any
    ) -> tuple[Tensor, Call]:
        """Check what came in, and embed it."""
        check_ids(ids, self.sizes.vocabulary(place.stack), f"the {role} ids")
        check_real(real, ids, f"the {role} ids")
        check_gates(rest.get("gates"), self.attentions, ids.shape[0])
        check_tap(rest.get("tap"))
        call = begin(ids, real, causal=place.causal, limit=self.limits.get(place.stack), **rest)
        return entrance(ids, self._table[role], call)

    def _losses(self, x: Tensor, targets: Tensor, smoothing: float, auxiliary: list[Tensor]) -> Losses:
        check_smoothing(smoothing)
        check_targets(targets, x, self.sizes.vocabulary("decoder"))
        total, tokens, plain = self.head.loss(x, self._table["output"], targets, smoothing)
        return Losses(total, tokens, _sum(auxiliary, total), plain)


class EncoderDecoder(Model):
    """Reads one text and writes another: translation, summaries, spelling to sound."""

    kind = "encoder_decoder"

    def __init__(self, spec: Spec):
        super().__init__(spec)
        self.places = encoder, decoder = spec.place("encoder"), spec.place("decoder")
        self._own(spec.tables(spec)._asdict())
        self.encoder_input = Input(spec, encoder)
        self.encoder = spec.stack(spec, encoder)
        self.bridge = spec.bridge(spec, decoder)
        self.decoder_input = Input(spec, decoder)
        self.decoder = spec.decoder_stack(spec, decoder)
        self.head = spec.head(spec, decoder)
        self._complete(spec)

    def encode(
        self, source: Tensor, real: Tensor | None = None, *, tap: Tap | None = None, gates: Gates | None = None
    ) -> Memory:
        """Ids (S, n) → the memory that `decode` reads. `real` marks what is not padding; by default all but PAD."""
        return self._encode(source, real, tap=tap, gates=gates)

    def decode(
        self,
        ids: Tensor,
        memory: Memory | None = None,
        real: Tensor | None = None,
        *,
        cache: Cache | None = None,
        tap: Tap | None = None,
        gates: Gates | None = None,
    ) -> Tensor:
        """Ids (B, L) → states (B, L, D), each of which predicts the next word through `log_probs`.

        With `cache=Cache(memory)` in the memory's place, the ids go on from where the cache is.
        """
        if (memory is None) == (cache is None):
            got = "neither" if memory is None else "both"
            raise ValueError(f"decode needs either a memory or a cache that holds one, got {got}")
        return self._decode(ids, memory, real, cache, tap=tap, gates=gates)

    def forward(self, batch: Batch, smoothing: float = 0.0, recompute: bool = False) -> Losses:
        auxiliary: list[Tensor] = []
        memory = self._encode(batch.source, None, losses=auxiliary, recompute=recompute)
        x = self._decode(batch.inputs, memory, None, None, losses=auxiliary, recompute=recompute)
        return self._losses(x, batch.targets, smoothing, auxiliary)

    def _encode(self, source: Tensor, real: Tensor | None, **rest: Any) -> Memory:
        x, call = self._enter(self.encoder_input, self.places[0], "source", source, real, **rest)
        states, call = self.encoder(x, call)
        return Memory(self.bridge(states), call.real)

    def _decode(
        self, ids: Tensor, memory: Memory | None, real: Tensor | None, cache: Cache | None, **rest: Any
    ) -> Tensor:
        if cache is not None and cache.memory is None:
            raise ValueError("the cache holds no memory; make it with Cache(memory)")
        memory = check_memory(memory if cache is None else cache.memory, self.sizes.decoder_layers, self.sizes.d_model)
        x, call = self._enter(
            self.decoder_input, self.places[1], "target", ids, real, memory=memory, cache=cache, **rest
        )
        rows = memory.states[0].shape[0] * (1 if cache is None else cache.width)
        if x.shape[0] != rows:
            raise ValueError(f"{x.shape[0]} target rows, but {rows} rows of memory")
        states, call = self.decoder(x, call)
        finish(call, x.shape[1])
        return states[-1]


class DecoderOnly(Model):
    """Goes on with a text: a language model."""

    kind = "decoder_only"

    def __init__(self, spec: Spec):
        super().__init__(spec)
        self.place = Place("only", layers=spec.sizes.decoder_layers, causal=True)
        self._own(_one_vocabulary(spec))
        self.input = Input(spec, self.place)
        self.stack = spec.stack(spec, self.place)
        self.head = spec.head(spec, self.place)
        self._complete(spec)

    def decode(
        self,
        ids: Tensor,
        real: Tensor | None = None,
        *,
        cache: Cache | None = None,
        tap: Tap | None = None,
        gates: Gates | None = None,
    ) -> Tensor:
        """Ids (B, L) → states (B, L, D), each of which predicts the next word through `log_probs`.

        Rows of different length may be padded at either side. With `cache=Cache(rows=B)`, the ids go
        on from where each row of the cache is.
        """
        return self._decode(ids, real, cache=cache, tap=tap, gates=gates)

    def forward(self, batch: Batch, smoothing: float = 0.0, recompute: bool = False) -> Losses:
        auxiliary: list[Tensor] = []
        x = self._decode(batch.inputs, None, losses=auxiliary, recompute=recompute)
        return self._losses(x, batch.targets, smoothing, auxiliary)

    def _decode(self, ids: Tensor, real: Tensor | None, **rest: Any) -> Tensor:
        x, call = self._enter(self.input, self.place, "target", ids, real, **rest)
        states, call = self.stack(x, call)
        finish(call, x.shape[1])
        return states[-1]


class EncoderOnly(Model):
    """Understands a text: predicts masked words, or with `classes` says which class the whole is of."""

    kind = "encoder_only"

    def __init__(self, spec: Spec):
        super().__init__(spec)
        self.place = Place("only", layers=spec.sizes.encoder_layers, causal=False)
        roles = _one_vocabulary(spec)
        self._own(roles if not spec.sizes.classes else {"target": roles["target"]})
        self.input = Input(spec, self.place)
        self.stack = spec.stack(spec, self.place)
        if spec.sizes.classes:
            self.classifier = normal(nn.Linear(spec.sizes.d_model, spec.sizes.classes))
        else:
            self.head = spec.head(spec, self.place)
        self._complete(spec)

    def encode(
        self, ids: Tensor, real: Tensor | None = None, *, tap: Tap | None = None, gates: Gates | None = None
    ) -> Tensor:
        """Ids (S, n) → states (S, n, D)."""
        return self._encode(ids, real, tap=tap, gates=gates)[0]

    def classify(self, ids: Tensor, real: Tensor | None = None) -> Tensor:
        """Ids (S, n) → the log-probability of each class (S, classes)."""
        return self._logits(*self._encode(ids, real)).log_softmax(-1)

    def forward(self, batch: Batch, smoothing: float = 0.0, recompute: bool = False) -> Losses:
        auxiliary: list[Tensor] = []
        x, real = self._encode(batch.source, None, losses=auxiliary, recompute=recompute)
        if not self.sizes.classes:
            return self._losses(x, batch.targets, smoothing, auxiliary)
        check_smoothing(smoothing)
        check_classes(batch.targets, x, self.sizes.classes)
        log_p = self._logits(x, real).log_softmax(-1)
        total, plain = (smoothed_loss(log_p, batch.targets, epsilon) for epsilon in (smoothing, 0.0))
        return Losses(total, torch.tensor(x.shape[0], device=x.device), _sum(auxiliary, total), plain.detach())

    def _encode(self, ids: Tensor, real: Tensor | None, **rest: Any) -> tuple[Tensor, Tensor | None]:
        x, call = self._enter(self.input, self.place, "target", ids, real, **rest)
        states, call = self.stack(x, call)
        return states[-1], call.real

    def _logits(self, x: Tensor, real: Tensor | None) -> Tensor:
        """The mean of the states of what is not padding, classified. → (S, classes)"""
        if not self.sizes.classes:
            raise ValueError("this model predicts words; build it with Sizes(classes=…) to classify")
        if real is None:
            return self.classifier(x.mean(1))
        weight = real.to(x.dtype)[..., None]
        return self.classifier((x * weight).sum(1) / weight.sum(1).clamp(min=1))


def _one_vocabulary(spec: Spec) -> dict[str, nn.Module]:
    """The tables of a model that reads and writes one language."""
    if not spec.sizes.joint:
        raise ValueError("a model with one stack has one vocabulary: give vocab, not source_vocab and target_vocab")
    tables = spec.tables(spec)
    return {"target": tables.target, "output": tables.output}


def _sum(auxiliary: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(auxiliary).sum() if auxiliary else like.new_zeros(())


MODELS: dict[str, type[Model]] = {model.kind: model for model in (EncoderDecoder, DecoderOnly, EncoderOnly)}


def build(
    sizes: Sizes,
    modifications: Any = (),
    model: str = "encoder_decoder",
    *,
    device: torch.device | str | None = None,
    seed: int | None = None,
) -> Any:
    """Make a model with fresh weights: an EncoderDecoder, a DecoderOnly or an EncoderOnly, as `model` says.

    >>> build(Sizes(vocab=8000), ["rotary", "t5_bias:buckets=16"], model="decoder_only", seed=1)

    On `device="meta"` it takes no memory, whatever its size. A `seed` fixes the weights and leaves
    torch's own random state as it was.
    """
    if not isinstance(model, str) or model not in MODELS:
        raise ValueError(
            f"there is no model {model!r}{did_you_mean(str(model), MODELS)}; there are {', '.join(MODELS)}"
        )
    assembly = assemble(sizes, modifications, MODELS[model])
    with (
        torch.random.fork_rng(range(torch.cuda.device_count()), enabled=seed is not None),
        torch.device(device or torch.get_default_device()),
        Undrawn(),
    ):
        if seed is not None:
            torch.manual_seed(seed)
        built = MODELS[model](assembly.spec)
    built.assembly = assembly
    return built


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Put models in evaluation mode, and each of their parts back as it was."""
    in_training = [part for model in models for part in model.modules() if part.training]
    for part in in_training:
        part.training = False
    try:
        yield
    finally:
        for part in in_training:
            part.training = True
